// What the theme's pages do that Alpine's build without eval cannot read from an attribute.
document.addEventListener("alpine:init", () => {
  for (const make of [theme, searchForm, searchCommand]) {
    Alpine.data(make.name, make);
  }

  const SIDEBAR = "sidebarDesktopOpen";
  const page = {
    tab: () => getCurrentTab(),
    address(tab) {
      const here = window.location.pathname + window.location.search;
      return tab && tab !== "general" ? `${here}#${tab}` : here;
    },
    sidebarIsOpen: () => (localStorage.getItem(SIDEBAR) ?? "1") === "1",
    keepSidebar: (isOpen) => localStorage.setItem(SIDEBAR, isOpen ? "1" : "0"),
    clear(input) {
      if (input.value === "") {
        input.blur();
      } else {
        input.value = "";
      }
    },
  };
  Alpine.magic("page", () => page);
});

// Key t leads to the search over all objects, on small screens to its page.
document.addEventListener("keydown", (event) => {
  const at = document.activeElement;
  const isTyping = at && (at.isContentEditable || /^(input|textarea|select)$/i.test(at.tagName));
  if (event.key !== "t" || event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
  const box = document.getElementById("nav-filter");
  if (!box) return;
  event.preventDefault();
  if (box.checkVisibility()) {
    box.focus();
    box.select();
  } else {
    window.location.assign(box.form.action);
  }
});

// What the theme lets only be clicked is reached by keys, too, and leads into what it opens.
const CLICKED = "[x-on\\:click]:not(button, a[href], input, #changelist-filter-close)";
const MENU = "[x-on\\:click^='sidebarMobileOpen']";
const INSIDE = "a[href], button, input:not([type=hidden]), select, [role=button]";
const seen = (ones) => [...ones].find((one) => one?.checkVisibility());
let opener = null;
const enter = (at) => {
  const opened = seen([at.matches(MENU) ? document.getElementById("nav-sidebar-inner")
    : at.parentElement.querySelector("nav"), document.getElementById("changelist-filter")]);
  const first = seen(opened?.querySelectorAll(INSIDE) ?? []);
  if (!first || opened.contains(at)) return;
  opener = at;
  first.focus();
};
document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll(CLICKED)) {
    one.tabIndex = 0;
    one.setAttribute("role", "button");
  }
});
document.addEventListener("keydown", (event) => {
  if ((event.key === "Enter" || event.key === " ") && event.target.matches?.(CLICKED)) {
    event.preventDefault();
    event.target.click();
    requestAnimationFrame(() => requestAnimationFrame(() => enter(event.target)));
  } else if (event.key === "Escape") {
    seen(document.querySelectorAll(`#nav-sidebar-inner ${MENU}`))?.click();
    if (seen(document.querySelectorAll("nav[x-on\\:click\\.outside]"))) document.body.click();
    opener?.focus();
    opener = null;
  }
});

// Boxes that choose among rows say what they are for, not only what is chosen.
const nameBoxes = () => {
  for (const box of document.querySelectorAll(".select2-selection")) {
    const field = box.closest(".select2-container")?.previousElementSibling;
    const label = field?.labels?.[0];
    if (!label) continue;
    label.id ||= `label-${field.id}`;
    box.setAttribute("aria-labelledby", `${label.id} ${box.getAttribute("aria-labelledby")}`);
    const chosen = box.querySelector(".select2-selection__rendered"); // text, no field of its own
    chosen?.removeAttribute("role");
    chosen?.removeAttribute("aria-readonly");
  }
};
// They are made in jQuery's queue, which may run after the load: this comes behind them there.
window.addEventListener("load", () => window.django?.jQuery?.(nameBoxes));

// On small screens a cell says its column; the theme takes a first one that is no link for a box.
document.addEventListener("DOMContentLoaded", () => {
  const title = document.querySelector("#result_list thead th .text")?.textContent.trim();
  if (!title || document.querySelector("#result_list .action-select")) return;
  for (const cell of document.querySelectorAll("#result_list tbody td:first-child[data-label]")) {
    cell.dataset.label = title;
  }
});

// On small screens rows of a table that does not fit stand below each other, a line for each cell.
const SMALL = window.matchMedia("(max-width: 60rem)");
const ROLES = [["thead, tbody", "rowgroup"], ["tr", "row"], ["td", "cell"],
  ["thead th", "columnheader"], ["tbody th", "rowheader"]];
const stack = (table) => {
  const titles = [...table.querySelectorAll("thead th")].map((one) => one.textContent.trim());
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, at) => {
      if (cell.colSpan === 1) cell.dataset.label = titles[at] ?? "";
    });
  }
  table.setAttribute("role", "table"); // blocks are no table of their own accord
  for (const [parts, role] of ROLES) {
    for (const part of table.querySelectorAll(parts)) part.setAttribute("role", role);
  }
  table.classList.add("hr-stacked");
};
const fitTables = () => {
  for (const table of document.querySelectorAll(".hr-table")) {
    if (table.closest(".hr-chart-scroll")) continue;
    table.classList.remove("hr-stacked");
    if (!SMALL.matches) continue;
    const style = getComputedStyle(table.parentElement);
    const room = table.parentElement.clientWidth
      - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (table.offsetWidth > room + 1) stack(table);
  }
};
document.addEventListener("DOMContentLoaded", fitTables);
document.addEventListener("toggle", (event) => { // what was closed had no width
  if (event.target.querySelector(".hr-table")) fitTables();
}, true);
window.addEventListener("load", fitTables);
window.addEventListener("resize", fitTables);
