"use strict";
(() => {
  const partner = "DARK";
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const recolour = (text) => text.replace(/#[0-9a-f]{6}/g, (color) => partner[color] ?? color);
  // What the scripts of widgets may use; after each drawing, also one in other colors, they are told by `drawn`.
  globalThis.sinkscope = {
    inScheme: (text) => (scheme.matches ? recolour(text) : text),
    config: { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] },
  };

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
      const { data, layout } = JSON.parse(sinkscope.inScheme(source));
      await Plotly.react(plot, data, { ...layout, sliders: [] }, sinkscope.config);
      await play();
    };
  });

  async function draw() {
    await Promise.all(drawings.map((drawing) => drawing()));
    document.documentElement.dataset.drawn = scheme.matches ? "dark" : "light";
    document.dispatchEvent(new Event("drawn"));
  }
  scheme.addEventListener("change", draw);
  document.addEventListener("DOMContentLoaded", draw); // by then the scripts of widgets listen
})();
