"use strict";
const findings = [...document.querySelectorAll(".findings > li")];
const details = findings.map((item) => item.querySelector("details"));
const controls = document.querySelector(".controls");
if (controls) {
  const filter = document.getElementById("filter");
  const expand = document.getElementById("expand");
  const count = document.getElementById("filter-count");
  const words = findings.map((item) => item.textContent.toLowerCase());
  controls.hidden = false;
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    findings.forEach((item, index) => {
      item.hidden = !wanted.every((word) => words[index].includes(word));
      shown += item.hidden ? 0 : 1;
    });
    count.textContent = wanted.length ? `${shown} of ${findings.length}` : "";
  });
  expand.addEventListener("click", () => {
    const open = expand.getAttribute("aria-pressed") !== "true";
    details.forEach((each) => { each.open = open; });
    expand.setAttribute("aria-pressed", String(open));
    expand.textContent = open ? "Collapse all" : "Expand all";
  });
}
let closed = [];
addEventListener("beforeprint", () => {
  closed = details.filter((each) => !each.open);
  closed.forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => { closed.forEach((each) => { each.open = false; }); });
