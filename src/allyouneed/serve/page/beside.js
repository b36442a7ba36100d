// View 3: the same text through several models, with what each reads, how fast it speaks and how far its path is.
import { el, count, readable } from "./dom.js";
import { complete, post } from "./api.js";
import { textField, Status, empty } from "./parts.js";
import { weightsOf, mainMap, labelsOf } from "./maps.js";

class BesideView extends HTMLElement {
  begin({ models, values, keep }) {
    this.models = models;
    this.keep = keep;
    if (!models.length) {
      this.append(empty("No model is served", "Serve several to compare them:", "allyouneed serve runs/transformer runs/lstm"));
      return;
    }
    const asked = (values.models ?? "").split(",").filter((name) => models.some((model) => model.name === name));
    const first = models.find((model) => model.name === values.model) ?? models[0];
    const alike = models.filter((model) => model.source === first.source && model.kind === first.kind && model.target === first.target);
    this.chosen = new Set(asked.length ? asked : alike.slice(0, 4).map((model) => model.name));
    this.text = values.text ?? first.example;
    this.build();
    if (this.text) this.run();
  }

  disconnectedCallback() {
    this.stop?.abort();
  }

  build() {
    this.status = new Status();
    const choices = this.models.map((model) => {
      const box = el("input", { type: "checkbox", checked: this.chosen.has(model.name), onchange: () => {
        if (box.checked) this.chosen.add(model.name);
        else this.chosen.delete(model.name);
        this.remember();
        this.run();
      } });
      return el("label", { class: "chip" }, box, el("span", {}, model.name));
    });
    this.area = textField("Text", this.text, (text) => { this.text = text; this.remember(); });
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.run();
      }
    });
    this.cards = el("div", { class: "cards" });
    this.append(
      el("h1", {}, "Side by side"),
      el("p", { class: "lead" }, "One text, several architectures: what each says, what it read for that, how fast it spoke, and how many layers lie between the first token and the last."),
      el("fieldset", { class: "chips" }, el("legend", {}, "Models"), choices),
      el("div", { class: "ask two" }, el("div", { class: "field" }, el("span", {}, "Text"), this.area), el("button", { class: "act", type: "button", onclick: () => this.run() }, "Compare")),
      this.status.node, this.cards);
  }

  remember() {
    this.keep({ models: [...this.chosen].join(","), text: this.text });
  }

  async run() {
    this.stop?.abort();
    const stop = this.stop = new AbortController();
    this.remember();
    const models = this.models.filter((model) => this.chosen.has(model.name));
    const cards = models.map((model) => new Card(model));
    this.cards.replaceChildren(...cards.map((card) => card.node));
    // One after another: models that speak at the same time would slow each other down.
    for (const [place, card] of cards.entries()) {
      this.status.say(`${card.model.name}, ${place + 1} of ${cards.length} …`);
      await card.run(this.text, stop.signal);
      if (stop.signal.aborted) return;
    }
    this.status.say(cards.length ? "" : "Choose a model.");
  }
}
customElements.define("view-beside", BesideView);

class Card {
  constructor(model) {
    this.model = model;
    this.answer = el("p", { class: "answer" }, "…");
    this.map = el("heat-map");
    this.note = el("p", { class: "note" });
    this.speed = el("dd", {}, "…");
    const path = model.path === null ? "–" : `${model.path} layer${model.path === 1 ? "" : "s"}`;
    const steps = model.steps === null ? "–" : count(model.steps);
    this.node = el("article", { class: "card" }, el("h3", {}, model.name), el("p", { class: "note" }, model.architecture), this.answer,
      el("dl", { class: "numbers" },
        el("div", {}, el("dt", {}, "tokens a second"), this.speed),
        el("div", { title: "layers until the first of 32 tokens can change the last" }, el("dt", {}, "path of 32 tokens"), el("dd", {}, path)),
        el("div", { title: "operations one after another on that path" }, el("dt", {}, "steps on it"), el("dd", {}, steps)),
        el("div", {}, el("dt", {}, "parameters"), el("dd", {}, count(model.parameters)))),
      this.map, this.note);
  }

  async run(text, signal) {
    try {
      if (this.model.target) await this.speak(text, signal);
      const answer = await post("/attention", { model: this.model.name, text }, signal);
      if (!this.model.target) {
        this.answer.replaceChildren(el("bdi", {}, readable(answer.answer)));
        this.speed.textContent = "–";
      }
      this.draw(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.answer.className = "status wrong";
      this.answer.textContent = error.message;
      this.speed.textContent = "–";
    }
  }

  async speak(text, signal) {
    const began = performance.now();
    let said = "", tokens = 0;
    const body = { model: this.model.name, prompt: text, temperature: 0, max_tokens: this.model.source ? 200 : 32 };
    for await (const token of complete(body, signal)) {
      if (token.text === undefined) continue;
      said += token.text;
      tokens += 1;
      this.answer.replaceChildren(el("bdi", {}, readable(said)));
    }
    const seconds = (performance.now() - began) / 1000;
    if (!tokens) this.answer.textContent = "(nothing)";
    this.speed.textContent = tokens ? count(Math.round(tokens / seconds)) : "–";
  }

  draw(answer) {
    const number = mainMap(answer.maps);
    this.note.textContent = answer.note;
    if (number < 0) return this.map.remove();
    const map = answer.maps[number];
    const heads = map.weights.length > 1 ? `, mean of ${map.weights.length} heads` : "";
    if (!answer.note) this.note.textContent = `${map.part === "cross" ? "What it read of the source" : "Who read whom"}, layer ${map.layer}${heads}.`;
    this.map.data = { weights: weightsOf(map, -1), rows: labelsOf(answer, map.rows), columns: labelsOf(answer, map.columns),
      verb: map.name === "influence" ? "is moved by" : "reads", label: `${this.model.name}: arrow keys move through its cells` };
  }
}
