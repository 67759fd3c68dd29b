"use strict";
(() => {
  const box = document.getElementById("filter");
  const count = document.getElementById("count");
  // gpu05 is among gpu[01-03,05]: rows name their hosts as folded sets.
  const among = (text, word) => {
    const [, prefix, number] = word.match(/^(.*?)(\d+)$/) ?? [];
    const within = (range) => ((ends) => +ends[0] <= +number && +number <= +ends.at(-1))(range.split("-"));
    const folded = number ? text.matchAll(/([\w.-]+)\[([\d,-]+)\]/g) : [];
    return [...folded].some((set) => set[1] === prefix && set[2].split(",").some(within));
  };
  const items = [...document.querySelectorAll("[data-filter]")].map((node) => [node, node.textContent.toLowerCase()]);
  const apply = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [node, text] of items) {
      const match = words.every((word) => text.includes(word) || among(text, word));
      node.hidden = !match;
      shown += match ? 1 : 0;
    }
    count.textContent = words.length ? `${shown} of ${items.length} rows` : "";
  };
  box.addEventListener("input", apply);
  // A printed page shows every finding and host list open; afterwards all is as it was.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.finding:not([open]), details.hosts:not([open])")];
    closed.forEach((node) => (node.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((node) => (node.open = false)));
})();
