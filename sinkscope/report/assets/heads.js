"use strict";
// Maps of layer × head, one for each metric, with one selection in all of them.
(() => {
  const data = sinkscope.read("heads-data");
  if (!data) return;
  const { selection, number, element } = sinkscope;
  const MARGIN = { left: 24, top: 4, bottom: 16 };
  let index = data.index;

  const grid = (metric) => metric.values[metric.positioned ? index : 0];
  const part = ({ low, high, log }, value) => {
    if (!log) return (value - low) / (high - low);
    return (Math.log(Math.max(value, 1e-12)) - Math.log(low)) / (Math.log(high) - Math.log(low));
  };
  const written = (metric, value) => `${number(value)}${metric.unit && value !== null ? `\u00a0${metric.unit}` : ""}`;
  const named = (layer, head) => `layer ${data.layers[layer]}, head ${head}`;

  // The first map answers the page's question and stands at its top; the chief ones are beside each other, the others
  // one at a time, by a menu.
  const place = (metric) => {
    if (metric === data.metrics[0]) return document.getElementById("first-map");
    return document.getElementById(metric.chief ? "head-maps" : "head-other");
  };

  function menu() {
    const others = data.metrics.filter((metric) => place(metric).id === "head-other");
    document.getElementById("head-others").hidden = others.length === 0;
    const only = (index) => others.forEach((metric, at) => {
      document.querySelector(`[data-metric="${metric.key}"]`).hidden = at !== index;
    });
    chooser("head-metric", others.map(({ title }) => title), only);
    only(0);
  }

  function map(metric) {
    const shown = element("output");
    const canvas = element("canvas", { "aria-hidden": "true" });
    const board = element("div", { class: "board", tabindex: "0", role: "application" }, canvas);
    board.setAttribute("aria-roledescription", "map of layers and heads");
    const bar = element("i");
    const { low, high } = metric.scale;
    const legend = element("p", { class: "scale" }, number(low), bar, `${number(high)}\u00a0${metric.unit}`);
    const title = element("h3", {}, metric.title, metric.positioned ? element("span", { class: "mark" }, "\u00a0◆") : "");
    const about = element("p", { class: "about" }, metric.about);
    const box = element("div", { class: "map", "data-metric": metric.key }, title, about, board, legend, shown);
    place(metric).append(box);
    const cell = { width: 0, height: 0 };

    function draw() {
      const width = board.clientWidth - 2;
      if (width <= 0) return;
      cell.width = Math.min((width - MARGIN.left) / data.heads, 90);
      cell.height = Math.max(4, Math.min(cell.width, 40, 280 / data.layers.length));
      const size = { width, height: MARGIN.top + cell.height * data.layers.length + MARGIN.bottom };
      const dense = window.devicePixelRatio || 1;
      Object.assign(canvas, { width: size.width * dense, height: size.height * dense });
      Object.assign(canvas.style, { width: `${size.width}px`, height: `${size.height}px` });
      const pen = canvas.getContext("2d");
      pen.scale(dense, dense);
      const style = getComputedStyle(document.documentElement);
      const scale = sinkscope.scale(metric.scale.colors);
      bar.style.background = scale.css;
      grid(metric).forEach((row, layer) => row.forEach((value, head) => {
        const [x, y] = corner(layer, head);
        pen.fillStyle = value === null ? style.getPropertyValue("--line") : scale.color(part(metric.scale, value));
        const gap = cell.width > 7 ? 1 : 0.4;
        if (value === null) pen.fillRect(x + cell.width / 2 - 1, y + cell.height / 2 - 1, 2, 2);
        else pen.fillRect(x, y, cell.width - gap, cell.height - gap);
      }));
      ticks(pen, style.getPropertyValue("--muted"));
      frame(pen, style);
    }

    const corner = (layer, head) => [MARGIN.left + head * cell.width, MARGIN.top + (data.layers.length - 1 - layer) * cell.height];

    function ticks(pen, color) {
      pen.fillStyle = color;
      pen.font = "10px system-ui, sans-serif";
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      const stride = (count, room) => [1, 2, 5, 10, 20, 50, 100].find((step) => step * room >= 16) ?? count;
      for (let layer = 0; layer < data.layers.length; layer += stride(data.layers.length, cell.height)) {
        const label = data.layers[layer].split(" ").at(-1);
        pen.fillText(label, MARGIN.left - 5, corner(layer, 0)[1] + cell.height / 2);
      }
      pen.textAlign = "center";
      for (let head = 0; head < data.heads; head += stride(data.heads, cell.width)) {
        pen.fillText(head, corner(0, head)[0] + cell.width / 2, MARGIN.top + cell.height * data.layers.length + 9);
      }
    }

    function frame(pen, style) {
      const [x, y] = corner(selection.layer, selection.head);
      for (const [width, color] of [[4, "--panel"], [2, "--ink"]]) {
        pen.lineWidth = width;
        pen.strokeStyle = style.getPropertyValue(color);
        pen.strokeRect(x - 1, y - 1, cell.width + 1, cell.height + 1);
      }
    }

    function tell(layer = selection.layer, head = selection.head) {
      const value = written(metric, grid(metric)[layer][head]);
      shown.textContent = `${named(layer, head)}: ${value}`;
      return `${metric.title}, ${shown.textContent}`;
    }

    function under(event) {
      const box = canvas.getBoundingClientRect();
      const head = Math.floor((event.clientX - box.left - MARGIN.left) / cell.width);
      const layer = data.layers.length - 1 - Math.floor((event.clientY - box.top - MARGIN.top) / cell.height);
      const inside = head >= 0 && head < data.heads && layer >= 0 && layer < data.layers.length;
      return inside ? [layer, head] : null;
    }

    board.addEventListener("click", (event) => {
      const place = under(event);
      if (place) selection.select(...place);
    });
    board.addEventListener("mousemove", (event) => tell(...(under(event) ?? [])));
    board.addEventListener("mouseleave", () => tell());
    board.addEventListener("keydown", (event) => {
      const [layers, heads] = [data.layers.length, data.heads];
      const { layer, head } = selection;
      const moved = {
        ArrowUp: [layer + 1, head],
        ArrowDown: [layer - 1, head],
        ArrowLeft: [layer, head - 1],
        ArrowRight: [layer, head + 1],
        Home: [layer, 0],
        End: [layer, heads - 1],
        PageUp: [layers - 1, head],
        PageDown: [0, head],
      }[event.key];
      if (!moved || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      selection.select(...moved);
    });
    new ResizeObserver(draw).observe(board);
    return () => {
      draw();
      board.setAttribute("aria-label", tell());
      board.dataset.selected = `${selection.layer}.${selection.head}`;
    };
  }

  function numbers() {
    const { layer, head } = selection;
    document.getElementById("head-name").textContent = `Layer ${data.layers[layer]}, head ${head}`;
    document.getElementById("head-layer").value = layer;
    document.getElementById("head-head").value = head;
    document.getElementById("head-numbers").replaceChildren(...data.metrics.map((metric) => {
      const name = element("dt", {}, `${metric.title}${metric.positioned ? " ◆" : ""}`);
      return element("div", {}, name, element("dd", {}, written(metric, grid(metric)[layer][head])));
    }));
  }

  function chooser(id, names, chosen) {
    const select = document.getElementById(id);
    select.replaceChildren(...names.map((name, index) => element("option", { value: index }, name)));
    select.addEventListener("change", () => chosen(Number(select.value)));
  }

  function positionControl(update) {
    const control = document.getElementById("head-position");
    control.hidden = !data.metrics.some((metric) => metric.positioned) || data.positions.length < 2;
    const [input, output] = [control.querySelector("input"), control.querySelector("output")];
    input.max = data.positions.length - 1;
    input.value = index;
    const show = () => {
      index = Number(input.value);
      output.textContent = data.positions[index];
      input.setAttribute("aria-valuetext", `position ${data.positions[index]}`);
    };
    input.addEventListener("input", () => { show(); update(); });
    show();
  }

  const maps = data.metrics.map(map);
  menu();
  const update = () => { for (const show of maps) show(); numbers(); };
  selection.layers = data.layers.length;
  selection.heads = data.heads;
  selection.subscribe(update);
  chooser("head-layer", data.layers, (layer) => selection.select(layer, selection.head));
  chooser("head-head", [...Array(data.heads).keys()], (head) => selection.select(selection.layer, head));
  positionControl(update);
  document.addEventListener("drawn", update);
  sinkscope.heads = data;
  selection.select(...data.start);
})();
