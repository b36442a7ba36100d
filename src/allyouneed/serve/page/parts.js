// Parts that several views share: the model selection, a text field, a status line, an empty state.
import { el, count, readable } from "./dom.js";

export function modelChoice(models, chosen, changed) {
  const options = models.map((model) => el("option", { value: model.name, selected: model.name === chosen }, model.name));
  return el("label", { class: "field" }, el("span", {}, "Model"), el("select", { onchange: (event) => changed(event.target.value) }, options));
}

export function modelFacts(model) {
  if (!model) return el("p", { class: "note" }, "No model is served.");
  const path = model.path === null ? null : `path of ${model.path} layer${model.path === 1 ? "" : "s"}${model.steps > model.path ? `, ${model.steps} sequential steps` : ""}`;
  const facts = [model.architecture, `${count(model.parameters)} parameters`, path].filter(Boolean);
  return el("p", { class: "facts" }, el("span", {}, model.about), el("span", { class: "note" }, facts.join(" · ")));
}

export function textField(name, value, changed, rows = 2) {
  const area = el("textarea", { rows: String(rows), spellcheck: "false", maxlength: "20000", "aria-label": name, oninput: (event) => changed(event.target.value) });
  area.value = value;
  return area;
}

// The text that a model reads. Enter runs the view, Shift+Enter starts a new line: the same in every view.
export function promptField(name, value, changed, run, rows = 2) {
  const area = textField(name, value, changed, rows);
  area.title = "Enter runs, Shift+Enter starts a new line";
  area.setAttribute("aria-keyshortcuts", "Enter");
  runOnEnter(area, run);
  return area;
}

export function runOnEnter(field, run) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // composing: Enter accepts a word
    event.preventDefault();
    run();
  });
}

// A text to select, and a button that copies it.
export class CopyText {
  constructor(name) {
    this.text = el("p", { class: "answer" });
    this.button = el("button", { class: "copy", type: "button", onclick: () => this.copy() }, "Copy");
    this.node = el("section", { class: "plain", hidden: true, "aria-label": name }, el("h4", {}, name), el("div", { class: "plain-row" }, this.text, this.button));
  }

  set(text) {
    this.whole = text;
    this.node.hidden = text === "";
    this.text.replaceChildren(el("bdi", {}, readable(text)));
    this.button.textContent = "Copy";
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.whole);
      this.button.textContent = "Copied";
    } catch { // no clipboard without HTTPS, or not allowed: select the text, so that the usual keys copy it
      getSelection().selectAllChildren(this.text);
      this.button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
    }
  }
}

// A line for words that the model's vocabulary cannot represent.
export function unknownNote(words) {
  if (!words?.length) return null;
  const shown = words.slice(0, 8).flatMap((word) => [" ", el("bdi", { class: "tok" }, readable(word))]);
  const more = words.length > 8 ? ` and ${words.length - 8} more` : "";
  return el("p", { class: "warning" }, "Not in this model's vocabulary:", ...shown, `${more}. The model outputs something all the same; do not rely on it.`);
}

// The status line of a view: progress or an error.
export class Status {
  constructor() {
    this.node = el("p", { class: "status", role: "status" });
  }

  set(text = "") {
    this.node.className = "status";
    this.node.textContent = text;
  }

  fail(error) {
    if (error.name === "AbortError") return;
    this.node.className = "status wrong";
    this.node.textContent = error.message;
  }
}

export function empty(title, text, command) {
  return el("div", { class: "empty" }, el("h3", {}, title), el("p", {}, text), command ? el("pre", {}, command) : null);
}
