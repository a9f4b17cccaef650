"use strict";
(() => {
  const partner = "DARK";
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const recolour = (text) => text.replace(/#[0-9a-f]{6}/g, (color) => partner[color] ?? color);
  // What the scripts of widgets may use; after each drawing, also one in other colors, they are told by `drawn`.
  globalThis.sinkscope = {
    inScheme: (text) => (scheme.matches ? recolour(text) : text),
    config: { responsive: true, displayModeBar: false }, // its buttons would lie over legends; see `saver`
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
    plot.parentElement.querySelector(".controls").prepend(label);
    return play;
  }

  function saver(plot) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "save";
    button.textContent = "Save as SVG";
    const filename = plot.getAttribute("aria-label").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 80);
    button.addEventListener("click", () => Plotly.downloadImage(plot, { format: "svg", filename }));
    plot.parentElement.querySelector(".controls").append(button);
  }

  const folded = (plot) => plot.closest("details:not([open])") !== null;

  const drawings = [...document.querySelectorAll("[data-figure]")].map((plot) => {
    const source = document.getElementById(plot.dataset.figure).textContent;
    const slider = JSON.parse(source).layout.sliders?.[0];
    const play = slider ? control(plot, slider) : () => undefined;
    saver(plot);
    return async () => {
      const colors = scheme.matches ? "dark" : "light";
      // In a folded part it has no width yet: it is drawn when its question is opened.
      if (folded(plot) || plot.dataset.painted === colors) return;
      plot.dataset.painted = colors;
      const { data, layout } = JSON.parse(sinkscope.inScheme(source));
      await Plotly.react(plot, data, { ...layout, sliders: [] }, sinkscope.config);
      await play();
    };
  });

  async function draw() {
    await unpacked;
    await Promise.all(drawings.map((drawing) => drawing()));
    document.documentElement.dataset.drawn = scheme.matches ? "dark" : "light";
    document.dispatchEvent(new Event("drawn"));
  }
  // A link leads into folded parts: they open, and the page moves there once they have.
  function follow() {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    requestAnimationFrame(() => target.scrollIntoView({ block: "start" }));
  }
  window.addEventListener("hashchange", follow);
  document.addEventListener("click", ({ target }) => {
    if (target.closest("a[href]")?.hash === location.hash) follow();
  });
  document.addEventListener("DOMContentLoaded", follow);
  for (const part of document.querySelectorAll("details.question")) {
    part.addEventListener("toggle", () => { if (part.open) draw(); });
  }
  scheme.addEventListener("change", draw);
  document.addEventListener("DOMContentLoaded", draw); // by then the scripts of widgets listen
})();
