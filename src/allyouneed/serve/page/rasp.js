// View 4: a RASP program, its values on an input, and the attention of the compiled model.
import { el, visible, count, debounced } from "./dom.js";
import { get, post } from "./api.js";
import { textField, runOnEnter, Status } from "./parts.js";
import { labelsOf } from "./maps.js";

const DEFAULT_PROGRAM = `# Reverse the sequence.
flip = select(indices, length - indices - 1, ==);
reverse = aggregate(flip, tokens);
`;

class RaspView extends HTMLElement {
  start({ values, keep }) {
    this.keep = keep;
    this.values = { program: values.program ?? "", input: values.input ?? "", example: values.example ?? "" };
    this.build();
    this.later = debounced(() => this.run(), 350);
    this.loadExamples();
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
    runOnEnter(this.input, () => this.run());
    this.choice = el("select", { onchange: (event) => this.load(event.target.value) });
    this.flow = el("div", { class: "flow" });
    this.model = el("div", { class: "compiled" });
    this.append(
      el("h1", {}, "Think like attention"),
      el("p", { class: "lead" }, "RASP is a language for what attention can compute: select positions, then aggregate their values. Edit the program to see its values, its selectors, and the attention of the Transformer that it compiles to."),
      el("div", { class: "bench" },
        el("div", { class: "write" },
          el("div", { class: "bar-of-fields" }, el("label", { class: "field" }, el("span", {}, "Start from"), this.choice), el("label", { class: "field" }, el("span", {}, "Input"), this.input)),
          this.program, this.status.node),
        this.flow),
      this.model);
  }

  async loadExamples() {
    try {
      this.examples = await get("/rasp/examples");
    } catch (error) {
      this.examples = [];
      this.status.fail(error);
    }
    this.choice.replaceChildren(el("option", { value: "" }, "your own program"), ...this.examples.map((one) => el("option", { value: one.name }, one.name.replaceAll("_", " "))));
    const named = this.examples.find((one) => one.name === this.values.example);
    if (this.values.program) return this.run();
    if (named) return this.load(named.name, this.values.input);
    this.program.value = this.values.program = DEFAULT_PROGRAM;
    this.input.value = this.values.input ||= "hello";
    this.run();
  }

  load(name, input = "") {
    const one = this.examples.find((example) => example.name === name);
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
    this.status.set("Computing …");
    try {
      const response = await post("/rasp", { program, input, compile: true }, stop.signal);
      this.status.set("");
      if (response.error) {
        const where = response.error.line ? `Line ${response.error.line}: ` : "";
        this.status.fail(new Error(where + response.error.message));
      }
      this.draw(response);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.flow.replaceChildren(); // values and weights of an earlier program would contradict the error
      this.drawModel({ compiled: null });
      this.status.fail(error);
    }
  }

  draw(response) {
    const tokens = response.tokens;
    const sops = response.values.filter((one) => one.kind === "s-op"), selectors = response.values.filter((one) => one.kind === "selector");
    const row = (name, values, kind = "") => el("tr", { class: kind }, el("th", { scope: "row" }, el("bdi", {}, name)), values.map((value) => el("td", {}, el("bdi", {}, shown(value)))));
    const rows = sops.map((one) => row(one.name, one.values, one.name === response.result && !one.inside ? "own" : one.inside ? "inside" : ""));
    const table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Values" }, el("table", { class: "values" }, el("thead", {}, row("tokens", tokens)), el("tbody", {}, rows)));
    const maps = selectors.map((one) => el("figure", {}, this.map(one.matrix, tokens, tokens, "selects", one.name), el("figcaption", { class: one.inside ? "inside" : "" }, el("bdi", {}, one.name))));
    this.flow.replaceChildren(...[el("h4", {}, "s-ops: one value per position"), table, maps.length ? el("h4", {}, "selectors: which position selects which") : null, el("div", { class: "figures" }, maps)].filter(Boolean));
    this.drawModel(response);
  }

  map(weights, rows, columns, verb, label) {
    const map = el("heat-map");
    map.data = { weights, rows: rows.map(shown), columns: columns.map(shown), verb, label: `${label}: arrow keys move between cells` };
    return map;
  }

  drawModel({ compiled, tokens, result }) {
    if (!compiled) return this.model.replaceChildren(el("h2", {}, "As a Transformer"), el("p", { class: "note" }, "There is none until the error above is corrected."));
    if (compiled.refused) return this.model.replaceChildren(el("h2", {}, "As a Transformer"), el("p", { class: "note" }, `This program does not compile: ${compiled.refused}`));
    const facts = [`${compiled.layers} layer${compiled.layers === 1 ? "" : "s"}`, `${compiled.heads} head${compiled.heads === 1 ? "" : "s"}`, `width ${compiled.width}`, `${count(compiled.parameters)} parameters`, "not trained"];
    const output = el("p", { class: "answer" }, el("bdi", {}, `${result}: ${compiled.output.map(shown).join(" ")}`), el("span", { class: compiled.equal ? "good" : "wrong" }, compiled.equal ? " the same as the program" : " differs from the program"));
    const labels = { source: tokens, input: compiled.tokens };
    const figures = compiled.maps.flatMap((map) => map.weights.map((weights, head) =>
      el("figure", {}, this.map(weights, labelsOf(labels, map.rows), labelsOf(labels, map.columns), "reads", map.heads[head]),
        el("figcaption", {}, el("span", { class: "note" }, `layer ${map.layer} · head ${head + 1} `), el("bdi", {}, map.heads[head])))));
    const box = el("div", { class: "figures" }, figures);
    this.model.replaceChildren(el("h2", {}, "As a Transformer"), el("p", { class: "note" }, facts.join(" · ")), output, el("heat-legend"), box,
      el("p", { class: "note" }, "A head that selects nothing attends to the column start."));
  }
}
customElements.define("view-rasp", RaspView);

function shown(value) {
  if (value === true) return "T";
  if (value === false) return "F";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : value.toFixed(3).replace(/0+$/, "");
  return visible(value);
}
