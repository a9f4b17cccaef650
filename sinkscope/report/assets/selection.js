"use strict";
// What the views of one measurement share: the selected head, ways to write a number, and colors.
(() => {
  const listeners = [];
  const state = { layer: 0, head: 0 };
  const clamp = (value, most) => Math.min(Math.max(value, 0), most);

  sinkscope.read = (id) => {
    const element = document.getElementById(id);
    return element && JSON.parse(element.textContent);
  };

  // The one selected (layer, head): whoever changes it, every view that subscribed is told.
  sinkscope.selection = {
    layers: 1,
    heads: 1,
    get layer() { return state.layer; },
    get head() { return state.head; },
    subscribe(listener) { listeners.push(listener); },
    select(layer, head) {
      state.layer = clamp(layer, this.layers - 1);
      state.head = clamp(head, this.heads - 1);
      for (const listener of listeners) listener();
    },
  };

  sinkscope.number = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    const text = size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : `${+value.toPrecision(3)}`;
    return text.replace("-", "−");
  };

  const channels = (color) => [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));

  // A color scale in the reader's scheme: `color(t)` for t from 0 to 1, and `css`, its gradient.
  sinkscope.scale = (colors) => {
    const stops = JSON.parse(sinkscope.inScheme(JSON.stringify(colors))).map(([at, color]) => [at, channels(color)]);
    const mix = (t) => {
      const above = stops.findIndex(([at]) => at > t);
      if (above < 0) return stops.at(-1)[1];
      if (above === 0) return stops[0][1];
      const [[from, low], [to, high]] = [stops[above - 1], stops[above]];
      const part = (t - from) / (to - from);
      return low.map((channel, index) => Math.round(channel + part * (high[index] - channel)));
    };
    return {
      color: (t) => `rgb(${mix(clamp(t, 1)).join(" ")})`,
      // Black or white, whichever stands out: by the relative luminance of the color behind.
      ink: (t) => {
        const [red, green, blue] = mix(clamp(t, 1)).map((channel) => (channel / 255) ** 2.2);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
      },
      css: `linear-gradient(to right, ${stops.map(([at, rgb]) => `rgb(${rgb.join(" ")}) ${100 * at}%`).join(", ")})`,
    };
  };

  sinkscope.element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
})();
