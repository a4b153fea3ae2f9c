// Draws the pictures over time: each from the JSON beside it, in the colours of the page.
(() => {
  const COLOURS = {
    own_vms: "--hr-own", vms: "--hr-vms", committed: "--hr-committed", failover: "--hr-failover",
    in_flight: "--hr-flight", free: "--hr-free", forecast: "--hr-bad",
  };
  const STEPS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function amountText(amount, unit) {
    if (unit !== "memory") return Math.round(amount).toLocaleString("en");
    let step = 0;
    while (Math.abs(amount) >= 10240 && step < STEPS.length - 1) {
      amount /= 1024;
      step += 1;
    }
    return `${(Math.trunc(amount * 10) / 10).toLocaleString("en")} ${STEPS[step]}`;
  }

  // Whole steps of binary units, so that the axis reads 1 TiB, 2 TiB and not 1.09 TiB.
  function memoryAxis(highest) {
    let step = 1;
    while (highest / step > 5) step *= 2;
    let unit = 0;
    while (step >= 1024 ** (unit + 1)) unit += 1;
    return {
      interval: step, max: Math.ceil(highest / step) * step,
      label: (amount) => (amount === 0 ? "0" : `${amount / 1024 ** unit} ${STEPS[unit]}`),
    };
  }

  function amountAxis(content) {
    const axis = content.unit === "memory" ? memoryAxis(highestOf(content)) : {};
    const { interval, max, label = (amount) => amountText(amount, content.unit) } = axis;
    return {
      type: "value", min: 0, interval, max,
      axisLabel: { color: colour("--hr-soft"), formatter: label },
      splitLine: { lineStyle: { color: colour("--hr-line") } },
    };
  }

  function highestOf(content) {
    return content.times.reduce((most, _, place) => {
      const stacked = content.layers.reduce((sum, layer) => sum + (layer.amounts[place] ?? 0), 0);
      return Math.max(most, stacked, content.total.amounts[place] ?? 0);
    }, 1);
  }

  function utc(milliseconds) {
    return `${new Date(milliseconds).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  }

  // A line needs two ends: what is known at one time alone, between gaps or first of all, is a dot.
  function pointOf(time, amounts, place) {
    const isKnown = (other) => (amounts[other] ?? null) !== null;
    const value = [time, amounts[place] ?? null];
    if (!isKnown(place) || isKnown(place - 1) || isKnown(place + 1)) return value;
    return { value, symbol: "circle", symbolSize: 7 };
  }

  function seriesOf(content) {
    const pairs = (amounts) => content.times.map((time, place) => pointOf(time, amounts, place));
    const layers = content.layers.map((layer) => ({
      name: layer.name, type: "line", stack: "parts", symbol: "none", data: pairs(layer.amounts),
      color: colour(COLOURS[layer.kind]), lineStyle: { width: 1 }, areaStyle: { opacity: 0.75 },
      emphasis: { disabled: true },
    }));
    const total = {
      name: content.total.name, type: "line", symbol: "none", data: pairs(content.total.amounts),
      color: colour("--hr-ink"), lineStyle: { width: 2, type: "dashed" },
      emphasis: { disabled: true },
    };
    return [...layers, total];
  }

  function optionOf(content) {
    const ink = colour("--hr-ink");
    const soft = colour("--hr-soft");
    const lines = { lineStyle: { color: colour("--hr-line") } };
    return {
      animation: false,
      useUTC: true,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
      grid: { left: 4, right: 18, top: 14, bottom: 4, outerBoundsMode: "same" },
      tooltip: {
        trigger: "axis", renderMode: "richText", confine: true,
        backgroundColor: colour("--hr-card"), borderColor: colour("--hr-line"),
        textStyle: { color: ink },
        formatter(points) {
          const known = points.filter((point) => point.value[1] !== null);
          const rows = known.reverse().map((point) =>
            `${point.marker} ${point.seriesName}  ${amountText(point.value[1], content.unit)}`);
          return [utc(points[0].value[0]), ...(rows.length ? rows : ["not known"])].join("\n");
        },
      },
      xAxis: {
        type: "time", splitNumber: 4,
        axisLabel: { color: soft, hideOverlap: true, formatter: "{d} {MMM}" },
        axisLine: lines, axisTick: lines,
      },
      yAxis: amountAxis(content),
      series: seriesOf(content),
    };
  }

  function draw(figure) {
    const stored = document.getElementById(figure.dataset.chart);
    const place = figure.querySelector(".hr-chart-canvas");
    if (stored === null || place === null) return;
    const content = JSON.parse(stored.textContent);
    figure.querySelector(".hr-chart-drawn").hidden = false;
    figure.querySelector("details").open = false;
    const chart = echarts.init(place, null, { renderer: "canvas" });
    const show = () => chart.setOption(optionOf(content), { notMerge: true });
    show();
    figure.dataset.drawn = "yes";
    new ResizeObserver(() => chart.resize()).observe(place);
    new MutationObserver(show).observe(document.documentElement, { attributeFilter: ["class"] });
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("figure[data-chart]").forEach(draw);
  });
})();
