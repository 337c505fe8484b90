"use strict";
const drop = document.getElementById("drop");
if (drop) {
  const inputs = [document.getElementById("file"), document.getElementById("other")];
  const hint = document.getElementById("drop-hint");
  const over = (event) => { event.preventDefault(); drop.classList.add("over"); };
  drop.addEventListener("dragenter", over);
  drop.addEventListener("dragover", over);
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    [...event.dataTransfer.files].slice(0, 2).forEach((file, index) => {
      const one = new DataTransfer();
      one.items.add(file);
      inputs[index].files = one.files;
    });
    hint.textContent = [...event.dataTransfer.files].map((file) => file.name).join(", ");
  });
  document.querySelector(".upload").addEventListener("submit", (event) => {
    const button = event.target.querySelector("button");
    button.disabled = true;
    button.textContent = "Analysing…";
    hint.textContent = "Sending the file and analysing it.";
  });
  addEventListener("pageshow", () => {
    const button = document.querySelector(".upload button");
    button.disabled = false;
    button.textContent = "Analyse";
  });
}
