"use strict";
(() => {
  const partner = "DARK";
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const recolour = (text) => text.replace(/#[0-9a-f]{6}/g, (colour) => partner[colour] ?? colour);

  // A Plotly slider cannot be reached by keyboard: the page plays its steps from a native range input instead. The
  // inputs of one section move together, so that figures side by side show the same step.
  function control(plot, slider) {
    const input = document.createElement("input");
    input.type = "range";
    input.min = 0;
    input.max = slider.steps.length - 1;
    input.value = slider.active ?? 0;
    const shown = document.createElement("output");
    const label = document.createElement("label");
    label.append(slider.currentvalue.prefix, input, shown);
    const play = () => {
      const step = slider.steps[input.value];
      shown.textContent = step.label;
      input.setAttribute("aria-valuetext", step.label);
      return Plotly[step.method](plot, ...structuredClone(step.args));
    };
    plot.closest("section").addEventListener("input", (event) => {
      input.value = event.target.value;
      play();
    });
    plot.parentElement.querySelector(".controls").replaceChildren(label);
    return play;
  }

  const drawings = [...document.querySelectorAll("[data-figure]")].map((plot) => {
    const source = document.getElementById(plot.dataset.figure).textContent;
    const slider = JSON.parse(source).layout.sliders?.[0];
    const play = slider ? control(plot, slider) : () => undefined;
    return async () => {
      const { data, layout } = JSON.parse(scheme.matches ? recolour(source) : source);
      const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
      await Plotly.react(plot, data, { ...layout, sliders: [] }, config);
      await play();
    };
  });

  async function draw() {
    await Promise.all(drawings.map((drawing) => drawing()));
    document.documentElement.dataset.drawn = scheme.matches ? "dark" : "light";
  }
  scheme.addEventListener("change", draw);
  draw();
})();
