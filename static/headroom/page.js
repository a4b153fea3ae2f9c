// What the theme's pages do that Alpine's build without eval cannot read from an attribute.
document.addEventListener("alpine:init", () => {
  for (const make of [theme, searchForm, searchDropdown, searchCommand]) {
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
