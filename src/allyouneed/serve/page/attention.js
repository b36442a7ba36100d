// View 2: who reads whom in one model.
import { el, readable } from "./dom.js";
import { post } from "./api.js";
import { modelChoice, modelFacts, textField, Status, empty } from "./parts.js";
import "./maps.js";

class AttentionView extends HTMLElement {
  begin({ models, values, keep }) {
    this.models = models;
    this.keep = keep;
    if (!models.length) {
      this.append(empty("No model is served", "Serve one to look into it:", "allyouneed serve runs/mine"));
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
    this.area = textField("Text", this.values.text, (text) => this.set("text", text));
    this.wanted = textField("What it should say", this.values.target, (text) => this.set("target", text), 1);
    this.wanted.placeholder = "leave empty for its own answer";
    this.wantedField = el("details", { open: this.values.target !== "" }, el("summary", {}, "Give it the answer"), this.wanted);
    this.maps = el("map-explorer");
    this.maps.addEventListener("choose", (event) => this.set("map", event.detail));
    this.answer = el("p", { class: "answer" });
    for (const area of [this.area, this.wanted]) {
      area.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.shiftKey) {
          event.preventDefault();
          this.run();
        }
      });
    }
    const change = (name) => {
      const before = this.model;
      this.model = this.models.find((model) => model.name === name);
      if (this.values.text === before.example || !this.values.text) this.area.value = this.values.text = this.model.example;
      this.facts.replaceChildren(modelFacts(this.model));
      this.set("map", "");
      this.wantedField.hidden = !this.model.target;
      if (this.values.text) this.run();
    };
    this.wantedField.hidden = !this.model.target;
    this.append(
      el("h1", {}, "Who reads whom?"),
      el("p", { class: "lead" }, "Each small map is a head: a row is a token that reads, a column one that is read. Choose a map, then look at a token."),
      el("div", { class: "ask" }, modelChoice(this.models, this.model.name, change), el("div", { class: "field" }, el("span", {}, "Text"), this.area),
        el("button", { class: "act", type: "button", onclick: () => this.run() }, "Look")),
      this.facts, this.wantedField, this.status.node, this.answer, this.maps);
  }

  set(name, value) {
    this.values[name] = value;
    this.keep({ model: this.model.name, ...this.values });
  }

  async run() {
    this.stop?.abort();
    const stop = this.stop = new AbortController();
    this.keep({ model: this.model.name, ...this.values });
    this.status.say("Looking …");
    try {
      const body = { model: this.model.name, text: this.values.text, target: this.model.target && this.values.target ? this.values.target : null };
      const answer = await post("/attention", body, stop.signal);
      this.answer.replaceChildren(...(answer.answer ? ["→ ", el("bdi", {}, readable(answer.answer))] : []));
      this.maps.show(answer, this.values.map);
      this.status.say("");
    } catch (error) {
      if (error.name !== "AbortError") this.maps.replaceChildren();
      this.status.fail(error);
    }
  }
}
customElements.define("view-attention", AttentionView);
