"use strict";
// The tokens of a sample in reading order, shaded by the attention they receive.
(() => {
  const data = sinkscope.read("strip-data");
  if (!data) return;
  const { selection, number, element } = sinkscope;
  const [samples, layers, shares, box, readout, legend] = ["sample", "layer", "share", "tokens", "readout", "scale"]
    .map((name) => document.getElementById(`strip-${name}`));
  const special = new Set(data.special);
  let active = 0;
  let spans = [];

  const sample = () => data.samples[Number(samples.value)];
  // Row 0 is the mean of all layers; the selected layer may belong to another stack, and then has no row.
  const row = () => {
    if (layers.value === "all") return 0;
    const wanted = layers.value === "selected" ? selection.layer : Number(layers.value);
    return data.layers.findIndex((layer) => layer.row === wanted) + 1;
  };
  // The most of any token that is compared: the very last ones are seen by hardly any token but themselves.
  const top = () => Math.max(...data.samples.flatMap(({ received, counted }) => {
    return received[row()].map((value, index) => (counted[index] ? value ?? 0 : 0));
  }));
  const isSink = (index) => sample().counted[index] && sample().share[row()][index] > Number(shares.value);

  function fill() {
    const { ids, split } = sample();
    const words = ids.map((id, index) => split[index] ?? data.drawn[id]);
    spans = ids.map((id, index) => {
      const mark = element("b", { "aria-hidden": "true" });
      const made = element("span", { role: "option", id: `strip-token-${index}` }, mark, words[index]);
      made.classList.toggle("special", special.has(id));
      return made;
    });
    box.replaceChildren(...spans.flatMap((span, index) => (words[index].includes("⏎") ? [span, element("br")] : [span])));
    active = Math.min(active, spans.length - 1);
    shade();
  }

  function shade() {
    const most = top() || 1;
    const scale = sinkscope.scale(data.colors);
    const received = sample().received[row()];
    const bar = element("i");
    bar.style.background = scale.css;
    legend.replaceChildren("attention received: 0", bar, `${number(most)} or more`);
    spans.forEach((span, index) => {
      const part = (received[index] ?? 0) / most;
      span.style.background = scale.color(part);
      span.style.color = scale.ink(part);
      span.classList.toggle("sink", isSink(index));
      span.classList.toggle("late", !sample().counted[index]);
      span.firstChild.textContent = isSink(index) ? "◆" : "";
    });
    show(active);
  }

  function show(index) {
    const { ids, positions, received, share, norm, counted } = sample();
    spans.forEach((span, other) => span.setAttribute("aria-selected", other === active));
    box.setAttribute("aria-activedescendant", `strip-token-${active}`);
    const id = ids[index];
    const text = data.texts[id];
    const what = isSink(index) ? "a sink" : counted[index] ? "no sink" : "seen by at most half of the tokens";
    const facts = [
      ["position", positions[index]],
      ["id", special.has(id) ? `${id} (special token)` : id],
      ["attention received", number(received[row()][index])],
      [`heads over ε = ${data.epsilon}`, `${number(share[row()][index])} %`],
      ...(norm ? [["largest hidden norm", number(norm[index])]] : []),
      ["here", what],
    ];
    readout.replaceChildren(
      element("code", {}, text === undefined ? `token ${id}` : text),
      element("dl", {}, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, `${value}`)))),
    );
  }

  function move(index) {
    active = Math.min(Math.max(index, 0), spans.length - 1);
    show(active);
    spans[active].scrollIntoView({ block: "nearest" });
  }

  // The token in the next line, or the one before, that stands nearest below or above.
  function beyond(direction) {
    const { offsetTop, offsetLeft } = spans[active];
    const further = spans.map((span, index) => ({ index, top: span.offsetTop, left: span.offsetLeft }))
      .filter(({ top }) => direction * (top - offsetTop) > 2);
    if (!further.length) return active;
    const line = direction * Math.min(...further.map(({ top }) => direction * top));
    const inLine = further.filter(({ top }) => Math.abs(top - line) <= 2);
    return inLine.reduce((a, b) => (Math.abs(b.left - offsetLeft) < Math.abs(a.left - offsetLeft) ? b : a)).index;
  }

  const indexOf = (event) => spans.indexOf(event.target.closest("[role=option]"));
  box.addEventListener("mouseover", (event) => { if (indexOf(event) >= 0) show(indexOf(event)); });
  box.addEventListener("mouseleave", () => show(active));
  box.addEventListener("click", (event) => { if (indexOf(event) >= 0) move(indexOf(event)); });
  box.addEventListener("keydown", (event) => {
    const steps = {
      ArrowLeft: () => active - 1,
      ArrowRight: () => active + 1,
      ArrowUp: () => beyond(-1),
      ArrowDown: () => beyond(1),
      Home: () => 0,
      End: () => spans.length - 1,
    };
    if (!steps[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(steps[event.key]());
  });

  samples.replaceChildren(...data.samples.map((_, index) => element("option", { value: index }, index)));
  layers.replaceChildren(
    element("option", { value: "all" }, "all layers"),
    element("option", { value: "selected" }, "the layer selected above"),
    ...data.layers.map(({ row, label }) => element("option", { value: row }, `layer ${label}`)),
  );
  samples.addEventListener("change", fill);
  layers.addEventListener("change", shade);
  shares.addEventListener("change", shade);
  selection.subscribe(() => { if (layers.value === "selected") shade(); });
  document.addEventListener("drawn", shade);
  fill();
})();
