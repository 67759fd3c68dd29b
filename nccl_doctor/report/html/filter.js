"use strict";
(() => {
  const box = document.getElementById("filter");
  const count = document.getElementById("count");
  const items = [...document.querySelectorAll("[data-filter]")].map((node) => [node, node.textContent.toLowerCase()]);
  const apply = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [node, text] of items) {
      const match = words.every((word) => text.includes(word));
      node.hidden = !match;
      shown += match ? 1 : 0;
    }
    count.textContent = words.length ? `${shown} of ${items.length} rows` : "";
  };
  box.addEventListener("input", apply);
  // A printed page shows every finding open; afterwards all is as it was.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.finding:not([open])")];
    closed.forEach((node) => (node.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((node) => (node.open = false)));
})();
