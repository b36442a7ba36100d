// View 2: the attention maps of one model.
import { el, readable } from "./dom.js";
import { post } from "./api.js";
import { modelChoice, modelFacts, promptField, unknownNote, Status, empty } from "./parts.js";
import "./maps.js";

class AttentionView extends HTMLElement {
  start({ models, values, keep }) {
    this.models = models;
    this.keep = keep;
    if (!models.length) {
      this.append(empty("No model is served", "Serve one to inspect it:", "allyouneed serve runs/mine"));
      return;
    }
    this.model = models.find((model) => model.name === values.model) ?? models[0];
    this.values = { text: values.text ?? this.model.example, target: values.target ?? "", map: values.map ?? "" };
    this.build();
    if (this.values.text) this.run();
  }

  disconnectedCallback() {
    this.stop?.abort();
  }

  build() {
    this.status = new Status();
    this.facts = el("div", {}, modelFacts(this.model));
    this.area = promptField("Text", this.values.text, (text) => this.set("text", text), () => this.run());
    this.target = promptField("Output", this.values.target, (text) => this.set("target", text), () => this.run(), 1);
    this.target.placeholder = "leave empty for the model's own output";
    this.targetField = el("details", { open: this.values.target !== "" }, el("summary", {}, "Set the output"), this.target);
    this.maps = el("map-explorer");
    this.maps.addEventListener("choose", (event) => this.set("map", event.detail));
    this.answer = el("p", { class: "answer" });
    this.unknown = el("div");
    const change = (name) => {
      const before = this.model;
      this.model = this.models.find((model) => model.name === name);
      if (this.values.text === before.example || !this.values.text) this.area.value = this.values.text = this.model.example;
      this.facts.replaceChildren(modelFacts(this.model));
      this.set("map", "");
      this.targetField.hidden = !this.model.target;
      if (this.values.text) this.run();
    };
    this.targetField.hidden = !this.model.target;
    this.append(
      el("h1", {}, "Attention"),
      el("p", { class: "lead" }, "Each small map is one head. Rows are tokens that read, columns are tokens that are read. Choose a map, then point at a token."),
      el("div", { class: "query" }, modelChoice(this.models, this.model.name, change), el("div", { class: "field" }, el("span", {}, "Text"), this.area),
        el("button", { class: "act", type: "button", onclick: () => this.run() }, "Show")),
      this.facts, this.targetField, this.status.node, this.unknown, this.answer, this.maps);
  }

  set(name, value) {
    this.values[name] = value;
    this.keep({ model: this.model.name, ...this.values });
  }

  async run() {
    this.stop?.abort();
    const stop = this.stop = new AbortController();
    this.keep({ model: this.model.name, ...this.values });
    this.status.set("Computing …");
    try {
      const body = { model: this.model.name, text: this.values.text, target: this.model.target && this.values.target ? this.values.target : null };
      const result = await post("/attention", body, stop.signal);
      this.answer.replaceChildren(...(result.answer ? ["→ ", el("bdi", {}, readable(result.answer))] : []));
      this.unknown.replaceChildren(...[unknownNote(result.unknown)].filter(Boolean));
      this.maps.show(result, this.values.map);
      this.status.set("");
    } catch (error) {
      if (error.name === "AbortError") return;
      for (const part of [this.maps, this.answer, this.unknown]) part.replaceChildren(); // nothing of the last text stays
      this.status.fail(error);
    }
  }
}
customElements.define("view-attention", AttentionView);
