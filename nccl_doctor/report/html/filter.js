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
  // A printed page shows everything that can be opened.
  addEventListener("beforeprint", () => document.querySelectorAll("details.finding").forEach((node) => (node.open = true)));
})();
