// View 4: a program, what it computes on an input, and the real attention of the model that it compiles to.
import { el, visible, count, debounced } from "./dom.js";
import { get, post } from "./api.js";
import { textField, Status } from "./parts.js";
import { labelsOf } from "./maps.js";

const FIRST = `# The sequence backwards, two ways of looking.
flip = select(indices, length - indices - 1, ==);
reverse = aggregate(flip, tokens);
`;

class RaspView extends HTMLElement {
  begin({ values, keep }) {
    this.keep = keep;
    this.values = { program: values.program ?? "", input: values.input ?? "", example: values.example ?? "" };
    this.build();
    this.later = debounced(() => this.run(), 350);
    this.load();
  }

  disconnectedCallback() {
    this.stop?.abort();
  }

  build() {
    this.status = new Status();
    this.program = textField("Program", this.values.program, (text) => this.change("program", text), 12);
    this.program.className = "code";
    this.program.maxLength = 20000;
    this.input = el("input", { "aria-label": "Input", spellcheck: "false", maxlength: "64", oninput: (event) => this.change("input", event.target.value) });
    this.input.value = this.values.input;
    this.choice = el("select", { onchange: (event) => this.take(event.target.value) });
    this.flow = el("div", { class: "flow" });
    this.model = el("div", { class: "compiled" });
    this.append(
      el("h1", {}, "Think like attention"),
      el("p", { class: "lead" }, "RASP says what attention can compute: choose where to look, average what is seen. Type, and see every selector, and the attention of a Transformer whose weights are your program."),
      el("div", { class: "bench" },
        el("div", { class: "write" },
          el("div", { class: "bar-of-fields" }, el("label", { class: "field" }, el("span", {}, "Start from"), this.choice), el("label", { class: "field" }, el("span", {}, "Input"), this.input)),
          this.program, this.status.node),
        this.flow),
      this.model);
  }

  async load() {
    try {
      this.zoo = await get("/rasp/examples");
    } catch (error) {
      this.zoo = [];
      this.status.fail(error);
    }
    this.choice.replaceChildren(el("option", { value: "" }, "your own program"), ...this.zoo.map((one) => el("option", { value: one.name }, one.name.replaceAll("_", " "))));
    const named = this.zoo.find((one) => one.name === this.values.example);
    if (this.values.program) return this.run();
    if (named) return this.take(named.name, this.values.input);
    this.program.value = this.values.program = FIRST;
    this.input.value = this.values.input ||= "hello";
    this.run();
  }

  take(name, input = "") {
    const one = this.zoo.find((example) => example.name === name);
    if (!one) return;
    this.choice.value = name;
    this.values = { program: one.program, input: input || one.input, example: name };
    this.program.value = one.program;
    this.input.value = this.values.input;
    this.run();
  }

  change(name, text) {
    this.values[name] = text;
    if (name === "program") this.choice.value = this.values.example = "";
    this.later();
  }

  async run() {
    this.stop?.abort();
    const stop = this.stop = new AbortController();
    const { program, input, example } = this.values;
    this.keep(example ? { example, input } : { program, input });
    this.status.say("Computing …");
    try {
      const answer = await post("/rasp", { program, input, compile: true }, stop.signal);
      this.status.say("");
      if (answer.error) {
        const where = answer.error.line ? `Line ${answer.error.line}: ` : "";
        this.status.fail(new Error(where + answer.error.message));
      }
      this.draw(answer);
    } catch (error) {
      this.status.fail(error);
    }
  }

  draw(answer) {
    const tokens = answer.tokens;
    const sops = answer.values.filter((one) => one.kind === "s-op"), selectors = answer.values.filter((one) => one.kind === "selector");
    const row = (name, values, kind = "") => el("tr", { class: kind }, el("th", { scope: "row" }, el("bdi", {}, name)), values.map((value) => el("td", {}, el("bdi", {}, shown(value)))));
    const rows = sops.map((one) => row(one.name, one.values, one.name === answer.result && !one.inside ? "own" : one.inside ? "inside" : ""));
    const table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Values" }, el("table", { class: "values" }, el("thead", {}, row("tokens", tokens)), el("tbody", {}, rows)));
    const maps = selectors.map((one) => el("figure", {}, this.map(one.matrix, tokens, tokens, "selects", one.name), el("figcaption", { class: one.inside ? "inside" : "" }, el("bdi", {}, one.name))));
    this.flow.replaceChildren(...[el("h4", {}, "s-ops: a value at every position"), table, maps.length ? el("h4", {}, "selectors: who looks at whom") : null, el("div", { class: "figures" }, maps)].filter(Boolean));
    if (!answer.error || answer.compiled) this.drawModel(answer);
  }

  map(weights, rows, columns, verb, label) {
    const map = el("heat-map");
    map.data = { weights, rows: rows.map(shown), columns: columns.map(shown), verb, label: `${label}: arrow keys move through its cells` };
    return map;
  }

  drawModel({ compiled, tokens, result }) {
    if (!compiled) return this.model.replaceChildren();
    if (compiled.refused) return this.model.replaceChildren(el("h2", {}, "As a Transformer"), el("p", { class: "note" }, `It does not compile: ${compiled.refused}`));
    const facts = [`${compiled.layers} layer${compiled.layers === 1 ? "" : "s"}`, `${compiled.heads} head${compiled.heads === 1 ? "" : "s"}`, `width ${compiled.width}`, `${count(compiled.parameters)} parameters`, "nothing was trained"];
    const said = el("p", { class: "answer" }, el("bdi", {}, `${result}: ${compiled.output.map(shown).join(" ")}`), el("span", { class: compiled.equal ? "good" : "wrong" }, compiled.equal ? " the same as the program" : " not what the program says"));
    const answer = { source: tokens, input: compiled.tokens };
    const figures = compiled.maps.flatMap((map) => map.weights.map((weights, head) =>
      el("figure", {}, this.map(weights, labelsOf(answer, map.rows), labelsOf(answer, map.columns), "reads", map.heads[head]),
        el("figcaption", {}, el("span", { class: "note" }, `layer ${map.layer} · head ${head + 1} `), el("bdi", {}, map.heads[head])))));
    const box = el("div", { class: "figures" }, figures);
    this.model.replaceChildren(el("h2", {}, "As a Transformer"), el("p", { class: "note" }, facts.join(" · ")), said, box,
      el("p", { class: "note" }, "Each head has a place to look when it selects nothing: the column start."));
  }
}
customElements.define("view-rasp", RaspView);

function shown(value) {
  if (value === true) return "T";
  if (value === false) return "F";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : value.toFixed(3).replace(/0+$/, "");
  return visible(value);
}
