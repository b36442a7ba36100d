// View 1: the output of a model, token by token, with probabilities and alternatives.
import { el, count } from "./dom.js";
import { complete, post } from "./api.js";
import { modelChoice, modelFacts, promptField, unknownNote, CopyText, Status, empty } from "./parts.js";
import "./tokens.js";

const MAX_TOKENS = 200; // of a language model; a translator stops by itself, or at the limit of the server

class TranslateView extends HTMLElement {
  start({ models, values, keep }) {
    this.models = models;
    this.keep = keep;
    if (!models.length) {
      this.append(empty("No model is served", "Train one, then serve it:", "allyouneed train numbers-en-de --minutes 2 --out runs/mine\nallyouneed serve runs/mine"));
      return;
    }
    this.model = models.find((model) => model.name === values.model) ?? models[0];
    this.text = values.text ?? this.model.example;
    this.temperature = Math.min(2, Math.max(0, Number(values.temperature ?? (this.model.source ? 0 : 0.8)) || 0));
    this.build();
    if (this.text) this.run(); // an example of the model's own data, if the address holds no text
  }

  disconnectedCallback() {
    this.stop?.abort();
  }

  build() {
    this.status = new Status();
    this.facts = el("div", {}, modelFacts(this.model));
    this.area = promptField("Text", this.text, (text) => { this.text = text; this.remember(); }, () => this.run(), 3);
    this.area.placeholder = "Type a text, then press Enter";
    this.unknown = el("div");
    this.plain = new CopyText("Output");
    this.act = el("button", { class: "act", type: "button", onclick: () => (this.running ? this.stop.abort() : this.run()) });
    const slider = el("input", { type: "range", min: "0", max: "1.5", step: "0.1", value: String(this.temperature), oninput: (event) => {
      this.temperature = Number(event.target.value);
      shown.textContent = this.temperature.toFixed(1);
      this.remember();
    } });
    const shown = el("output", {}, this.temperature.toFixed(1));
    this.output = el("token-run");
    this.temperatureField = el("label", { class: "field slim" }, el("span", {}, "Temperature ", shown), slider);
    const change = (name) => {
      const before = this.model;
      this.model = this.models.find((model) => model.name === name);
      if (this.text === before.example || !this.text) this.area.value = this.text = this.model.example;
      this.facts.replaceChildren(modelFacts(this.model));
      this.updateButton();
      if (this.text) this.run();
      else this.clear();
    };
    this.append(
      el("h1", {}, "Generate"),
      el("p", { class: "lead" }, "The output appears token by token. A thick underline marks an uncertain token. Point at a token to see the alternatives."),
      el("div", { class: "bar-of-fields" }, modelChoice(this.models, this.model.name, change), this.temperatureField), this.facts, this.area,
      el("div", { class: "actions" }, this.act, this.status.node), this.unknown, this.plain.node, this.output);
    this.clear();
    this.updateButton();
  }

  clear() {
    this.stop?.abort();
    this.output.clear();
    this.plain.set("");
    this.unknown.replaceChildren();
    this.status.set("");
  }

  updateButton() {
    this.act.textContent = this.running ? "Stop" : this.model.target ? (this.model.source ? "Translate" : "Continue") : "Classify";
    this.temperatureField.hidden = !this.model.target;
  }

  remember() {
    this.keep({ model: this.model.name, text: this.text, temperature: this.model.target && this.temperature ? String(this.temperature) : "" });
  }

  async run() {
    this.clear();
    const stop = this.stop = new AbortController();
    this.running = true;
    this.updateButton();
    this.remember();
    this.status.set("…");
    this.finish = null;
    const start = performance.now();
    try {
      const tokens = this.model.target ? await this.stream(stop.signal) : await this.classes(stop.signal);
      const seconds = (performance.now() - start) / 1000;
      const cut = this.finish === "length" ? ", cut at the maximum length" : "";
      this.status.set(`${count(tokens)} token${tokens === 1 ? "" : "s"} in ${seconds.toFixed(2)} s, ${count(Math.round(tokens / seconds))} per second${cut}`);
    } catch (error) {
      if (this.stop !== stop) return; // another request has replaced this one
      if (error.name === "AbortError") this.status.set("Stopped.");
      else this.status.fail(error);
    }
    if (this.stop === stop) {
      this.running = false;
      this.updateButton();
    }
  }

  async stream(signal) {
    let tokens = 0;
    const body = { model: this.model.name, prompt: this.text, temperature: this.temperature, max_tokens: this.model.source ? undefined : MAX_TOKENS };
    for await (const token of complete(body, signal)) {
      signal.throwIfAborted();
      this.plain.set(token.whole);
      if (token.text === undefined) {
        this.finish = token.finish;
        this.unknown.replaceChildren(...[unknownNote(token.unknown)].filter(Boolean));
        continue;
      }
      this.output.add(token);
      tokens += 1;
      this.status.set(`${count(tokens)} tokens …`);
    }
    if (tokens) this.output.openLeastCertain();
    else this.output.hint.textContent = "The output is empty.";
    return tokens;
  }

  async classes(signal) {
    const result = await post("/attention", { model: this.model.name, text: this.text }, signal);
    this.plain.set(result.answer);
    this.unknown.replaceChildren(...[unknownNote(result.unknown)].filter(Boolean));
    for (const token of result.said) this.output.add(token);
    this.output.openLeastCertain();
    return result.said.length;
  }
}
customElements.define("view-translate", TranslateView);
