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
    // a change by a script fires no event, and the form keeps what is chosen when there is one
    target.dispatchEvent(new Event("input", { bubbles: true }));
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
  // a key that composes a letter of an input method, or that is held down, must label nothing
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

const form = document.querySelector("form[data-keep]");
const slot = (id) => `desk-typed:${id}`;

// what was typed and chosen: it outlives a session's end, in this window alone
function typed() {
  const fields = [...form.querySelectorAll("textarea, select, [type=radio]:checked")];
  return Object.fromEntries(fields.map((field) => [field.name, field.value.trim()]));
}

function restore() {
  const kept = sessionStorage.getItem(slot(form.dataset.keep));
  // a page that tells a problem shows what was sent, which is newer
  if (!kept || document.querySelector("[role=alert]")) return;
  const fields = JSON.parse(kept), shown = typed();
  if (Object.keys(fields).every((name) => fields[name] === (shown[name] || ""))) {
    sessionStorage.removeItem(slot(form.dataset.keep));
    return;
  }
  for (const [name, value] of Object.entries(fields)) {
    for (const field of form.querySelectorAll(`[name="${CSS.escape(name)}"]`)) {
      if (field.type === "radio") field.checked = field.value === value;
      else field.value = value;
    }
  }
  form.querySelector(".restored").hidden = false;
}

// the words that decided, as their place in the text: letters are counted, not UTF-16 units
function quote() {
  const selection = getSelection();
  if (!selection.rangeCount || selection.isCollapsed) return;
  const range = selection.getRangeAt(0);
  const around = range.commonAncestorContainer;
  const text = (around.nodeType === Node.ELEMENT_NODE ? around : around.parentElement).closest("[data-text]");
  if (!text) return;
  const before = document.createRange();
  before.selectNodeContents(text);
  before.setEnd(range.startContainer, range.startOffset);
  const words = range.toString();
  const start = Number(text.dataset.start) + [...before.toString()].length;
  const box = form.querySelector("[name=spans]");
  const line = `${text.dataset.text}:${start}-${start + [...words].length} ${words.split(/\s+/).join(" ").trim()}`;
  box.value = [box.value.trim(), line].filter(Boolean).join("\n");
  form.dispatchEvent(new Event("input"));
}

for (const id of (document.querySelector("[data-done]")?.dataset.done || "").split("\n")) {
  sessionStorage.removeItem(slot(id));
}
if (form) {
  restore();
  form.addEventListener("input", () =>
    sessionStorage.setItem(slot(form.dataset.keep), JSON.stringify(typed())));
  const button = form.querySelector(".quote");
  button.hidden = false;
  button.addEventListener("mousedown", (event) => event.preventDefault());  // keeps the selection
  button.addEventListener("click", quote);
}
document.querySelector("form.try")?.addEventListener("submit", (event) => {
  const status = event.target.querySelector("[data-waiting]");
  status.textContent = status.dataset.waiting;
});
// whoever logs in next in this window must not find what was typed before
document.querySelector("form.who")?.addEventListener("submit", () => sessionStorage.clear());

if (help) {
  const opener = document.querySelector('[data-key="?"]');
  opener.hidden = false;
  opener.addEventListener("click", () => help.showModal());
  isOn.checked = localStorage.getItem("desk-keys") !== "off";
  isOn.addEventListener("change", () =>
    localStorage.setItem("desk-keys", isOn.checked ? "on" : "off"));
  document.addEventListener("keydown", onKey);
}
