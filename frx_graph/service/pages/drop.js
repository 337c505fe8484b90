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
    inputs.forEach((input, index) => {
      const one = new DataTransfer();
      const file = event.dataTransfer.files[index];
      if (file) one.items.add(file);
      input.files = one.files;
    });
    hint.textContent = [...event.dataTransfer.files].map((file) => file.name).join(", ");
  });
  document.querySelector(".upload").addEventListener("submit", (event) => {
    const size = inputs.reduce((sum, input) => sum + [...input.files].reduce((all, file) => all + file.size, 0), 0);
    if (size > Number(drop.dataset.mostBytes)) {
      event.preventDefault();
      hint.textContent = "The files are too large for this service.";
      return;
    }
    const button = event.target.querySelector("button");
    button.disabled = true;
    button.textContent = "Analysing…";
    hint.textContent = "Uploading and analysing the file.";
  });
  addEventListener("pageshow", () => {
    const button = document.querySelector(".upload button");
    button.disabled = false;
    button.textContent = "Analyse";
  });
}
