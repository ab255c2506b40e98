// Keys of the review desk: an element with data-key is chosen, focused or clicked by that key.
// Every page works without this file.
"use strict";

const help = document.getElementById("keys");
const isOn = document.getElementById("keys-on");

function press(key) {
  const target = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (!target) return false;
  if (target.type === "radio") {
    target.checked = true;
    target.focus({ preventScroll: true });
  } else if (target.matches("textarea")) {
    target.focus();
  } else {
    target.click();
  }
  return true;
}

function onKey(event) {
  const { key, target } = event;
  const saves = key === "Enter" && (event.ctrlKey || event.metaKey);
  if (event.repeat || event.isComposing || event.altKey || help.open) return;
  if (target.matches("textarea, select, input:not([type=radio], [type=checkbox])")) {
    if (key === "Escape") target.blur();
    if (saves && target.matches("textarea") && press("Enter")) event.preventDefault();
    return;
  }
  if (event.ctrlKey || event.metaKey || (!isOn.checked && key !== "Enter")) return;
  if (key === "Enter" && target.matches("a, button, summary, [type=checkbox]")) return;
  if (press(key.length === 1 ? key.toLowerCase() : key)) event.preventDefault();
}

if (help) {
  const opener = document.querySelector('[data-key="?"]');
  opener.hidden = false;
  opener.addEventListener("click", () => help.showModal());
  isOn.checked = localStorage.getItem("desk-keys") !== "off";
  isOn.addEventListener("change", () =>
    localStorage.setItem("desk-keys", isOn.checked ? "on" : "off"));
  document.addEventListener("keydown", onKey);
}
