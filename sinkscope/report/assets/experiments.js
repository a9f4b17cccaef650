"use strict";
// Experiments are folded; the figures of one are drawn when it is opened, so that a page can hold many.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const experiments = [...document.querySelectorAll("details.experiment")];
  const data = new Map(); // by the experiment's id, read once
  const chosen = new Map(); // the run whose curves a reader asked for

  function of(id) {
    if (!data.has(id)) data.set(id, read(`${id}-data`));
    return data.get(id);
  }

  // The chosen run's lines, over those of the figure.
  function single(id, name) {
    const run = of(id).runs[chosen.get(id)];
    if (!run?.curves || name.startsWith("dose")) return [];
    const { steps, ...curves } = run.curves;
    const [above, below] = of(id).curves.map((name) => curves[name]);
    const label = run.name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
    const line = { type: "scatter", mode: "lines+markers", name: label, line: { color: of(id).color, width: 2 } };
    if (name === "loss") return [{ ...line, x: below, y: above }];
    const second = { ...line, x: steps, y: below, yaxis: "y2", showlegend: false };
    return [{ ...line, x: steps, y: above }, ...(below ? [second] : [])];
  }

  async function draw(plot) {
    const { experiment: id, plot: name } = plot.dataset;
    const source = of(id).figures[name];
    const figure = { data: [...source.data, ...single(id, name)], layout: { ...source.layout, template: of(id).template } };
    const { data: traces, layout } = JSON.parse(sinkscope.inScheme(JSON.stringify(figure)));
    await Plotly.react(plot, traces, layout, sinkscope.config);
    plot.dataset.drawn = "";
  }

  const drawAll = (experiment) => Promise.all([...experiment.querySelectorAll("[data-plot]")].map(draw));

  function choose(experiment, index) {
    chosen.set(experiment.id, index);
    const shown = experiment.querySelector(".selected");
    shown.hidden = index === "";
    shown.querySelector("span").textContent = index === "" ? "" : `In black or white: ${of(experiment.id).runs[index].name}.`;
    drawAll(experiment);
    if (index !== "") experiment.querySelector("[data-plot=training]").scrollIntoView({ block: "center" });
  }

  for (const experiment of experiments) {
    experiment.addEventListener("toggle", () => { if (experiment.open) drawAll(experiment); });
    experiment.addEventListener("click", ({ target }) => {
      if (target.dataset.run !== undefined) choose(experiment, target.dataset.run);
    });
  }
  document.addEventListener("drawn", () => experiments.filter(({ open }) => open).forEach(drawAll));

  const filters = document.querySelector(".filters");
  const rows = [...document.querySelectorAll("#claims tbody tr")];
  function filter() {
    const grade = filters.querySelector("input:checked").value;
    const words = document.getElementById("claim-words").value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      const fits = (!grade || row.dataset.grade === grade) && words.every((word) => row.dataset.words.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("claim-count").textContent = `${shown} of ${rows.length} claims`;
  }
  if (filters) {
    filters.hidden = false;
    filters.addEventListener("input", filter);
    filter();
  }
})();
