// View 3: the same text in several models, with their outputs, speeds, path lengths and maps.
import { el, count, readable } from "./dom.js";
import { complete, post } from "./api.js";
import { promptField, unknownNote, Status, empty } from "./parts.js";
import { weightsOf, mainMap, labelsOf, wholeNote } from "./maps.js";

class BesideView extends HTMLElement {
  start({ models, values, keep }) {
    this.models = models;
    this.keep = keep;
    if (!models.length) {
      this.append(empty("No model is served", "Serve several to compare them:", "allyouneed serve runs/transformer runs/lstm"));
      return;
    }
    const named = (values.models ?? "").split(",").filter((name) => models.some((model) => model.name === name));
    const first = models.find((model) => model.name === values.model) ?? models[0];
    const alike = models.filter((model) => taskOf(model) === taskOf(first));
    this.chosen = new Set(named.length ? named : alike.slice(0, 4).map((model) => model.name));
    this.text = values.text ?? first.example;
    this.build();
    if (this.text) this.run();
  }

  disconnectedCallback() {
    this.stop?.abort();
  }

  build() {
    this.status = new Status();
    const chip = (model) => {
      const box = el("input", { type: "checkbox", checked: this.chosen.has(model.name), onchange: () => {
        if (box.checked) this.chosen.add(model.name);
        else this.chosen.delete(model.name);
        this.remember();
        this.run();
      } });
      return el("label", { class: "chip" }, box, el("span", {}, model.name));
    };
    const tasks = [...new Set(this.models.map(taskOf))];
    const choices = tasks.map((task) => el("fieldset", { class: "chips" }, el("legend", {}, tasks.length > 1 ? `Task: ${task}` : "Models"),
      this.models.filter((model) => taskOf(model) === task).map(chip)));
    this.area = promptField("Text", this.text, (text) => { this.text = text; this.remember(); }, () => this.run());
    this.unlike = el("p", { class: "warning", hidden: true });
    this.legend = el("heat-legend", { hidden: true });
    this.cards = el("div", { class: "cards" });
    this.append(
      el("h1", {}, "Side by side"),
      el("p", { class: "lead" }, "One text, several architectures: the output of each, its speed, its attention, and the number of layers between the first token and the last."),
      el("div", { class: "tasks" }, choices),
      el("div", { class: "query two" }, el("div", { class: "field" }, el("span", {}, "Text"), this.area), el("button", { class: "act", type: "button", onclick: () => this.run() }, "Compare")),
      this.status.node, this.unlike, this.legend, this.cards);
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
    const tasks = [...new Set(models.map(taskOf))];
    this.unlike.hidden = tasks.length < 2;
    this.unlike.textContent = `These models have different tasks: ${tasks.join("; ")}. Do not compare their outputs and speeds.`;
    this.legend.hidden = !models.length;
    // One after another: models that run at the same time would slow each other down.
    for (const [place, card] of cards.entries()) {
      this.status.set(`${card.model.name}, ${place + 1} of ${cards.length} …`);
      await card.run(this.text, stop.signal);
      if (stop.signal.aborted) return;
    }
    this.status.set(cards.length ? "" : "Choose a model.");
  }
}
customElements.define("view-beside", BesideView);

// What a model was made for, in words. Outputs and speeds are comparable only between models with the same task.
function taskOf(model) {
  const languages = model.languages ? `, ${model.languages.join(" → ")}` : "";
  const does = model.target ? (model.source ? "" : ", continues a text") : ", classifies";
  return `${model.task ?? "unknown"}${languages}${does}`;
}

class Card {
  constructor(model) {
    this.model = model;
    this.answer = el("p", { class: "answer" }, "…");
    this.map = el("div", { class: "map" });
    this.unknown = el("div");
    this.note = el("p", { class: "note" });
    this.speed = el("dd", {}, "…");
    const path = model.path === null ? "–" : `${model.path} layer${model.path === 1 ? "" : "s"}`;
    const steps = model.steps === null ? "–" : count(model.steps);
    this.node = el("article", { class: "card" }, el("h3", {}, model.name), el("p", { class: "note" }, model.architecture), el("div", {}, this.answer, this.unknown),
      el("dl", { class: "numbers" },
        el("div", {}, el("dt", {}, "tokens per second"), this.speed),
        el("div", { title: "layers until the first of 32 tokens can influence the last" }, el("dt", {}, "path of 32 tokens"), el("dd", {}, path)),
        el("div", { title: "sequential operations on that path" }, el("dt", {}, "sequential steps"), el("dd", {}, steps)),
        el("div", {}, el("dt", {}, "parameters"), el("dd", {}, count(model.parameters)))),
      this.map, this.note);
  }

  async run(text, signal) {
    try {
      if (this.model.target) await this.generate(text, signal);
      const result = await post("/attention", { model: this.model.name, text }, signal);
      if (!this.model.target) {
        this.answer.replaceChildren(el("bdi", {}, readable(result.answer)));
        this.speed.textContent = "–";
      }
      this.unknown.replaceChildren(...[unknownNote(result.unknown)].filter(Boolean));
      this.draw(result);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.answer.className = "status wrong";
      this.answer.textContent = error.message;
      this.speed.textContent = "–";
    }
  }

  async generate(text, signal) {
    const start = performance.now();
    let tokens = 0;
    const body = { model: this.model.name, prompt: text, temperature: 0, max_tokens: this.model.source ? undefined : 32 };
    for await (const token of complete(body, signal)) {
      if (token.text === undefined) continue;
      tokens += 1;
      this.answer.replaceChildren(el("bdi", {}, readable(token.whole)));
    }
    const seconds = (performance.now() - start) / 1000;
    if (!tokens) this.answer.textContent = "(empty output)";
    this.speed.textContent = tokens ? count(Math.round(tokens / seconds)) : "–";
  }

  draw(result) {
    const number = mainMap(result.maps);
    const whole = wholeNote(result, "The weights of this map");
    this.note.textContent = `${result.note} ${whole}`.trim();
    if (number < 0) return;
    const map = result.maps[number], large = el("heat-map");
    const heads = map.weights.length > 1 ? `, mean of ${map.weights.length} heads` : "";
    if (!result.note) this.note.textContent = `${map.part === "cross" ? "Cross-attention" : "Attention"}, layer ${map.layer}${heads}. ${whole}`.trim();
    this.map.replaceChildren(large);
    large.data = { weights: weightsOf(map, -1), rows: labelsOf(result, map.rows), columns: labelsOf(result, map.columns),
      verb: map.name === "influence" ? "is influenced by" : "reads", label: `${this.model.name}: arrow keys move between cells` };
  }
}
