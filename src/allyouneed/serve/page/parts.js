// Parts that several views share: the model selection, a text field, a status line, an empty state.
import { el, count } from "./dom.js";

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
