"use strict";
// Figures of the selected head: their skeletons stand in the page, the numbers are put in when the selection moves.
(() => {
  const data = sinkscope.heads;
  if (!data) return;
  const { selection, number } = sinkscope;
  const panel = document.querySelector("#heads .head-side");
  const note = document.getElementById("head-note");
  const plots = Object.fromEntries(Object.entries(data.figures).map(([name, title]) => {
    return [name, [...panel.querySelectorAll(".plot")].find((plot) => plot.getAttribute("aria-label") === title)];
  }));
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const at = (values) => values?.[selection.layer]?.[selection.head];
  const fill = (plot, columns, layout = {}) => Plotly.update(plot, columns, layout);

  function profile(plot) {
    const { positions, received, uniform } = data.profile;
    const flat = uniform?.[selection.layer] ?? [];
    return fill(plot, { x: [positions, uniform ? positions : []], y: [at(received), flat] });
  }

  function angles(plot) {
    const { centres, sink, others } = data.angles;
    return fill(plot, { x: [centres, centres], y: [at(sink), at(others)] });
  }

  function keys(plot) {
    const { position, sample, marked } = data.keys;
    const [x, y] = at(data.keys.points);
    const groups = [[], []];
    position.forEach((where, index) => groups[where === marked ? 1 : 0].push(index));
    const of = (values) => groups.map((group) => group.map((index) => values[index]));
    const [first, second] = at(data.keys.shares).map((share) => number(100 * share));
    return fill(
      plot,
      { x: of(x), y: of(y), customdata: of(position.map((where, index) => [where, sample[index]])) },
      {
        "xaxis.title.text": `first component (${first} % of variance)`,
        "yaxis.title.text": `second component (${second} %)`,
      },
    );
  }

  function attention(plot) {
    const { weights, tokens, named } = data.maps;
    const rows = weights[`${selection.layer}.${selection.head}`];
    plot.closest("figure").hidden = !rows;
    if (!rows) return undefined;
    // The tokens are those of one stack: an encoder's, or patches of an image, are numbers alone.
    const [queries, keys] = named[selection.layer];
    const word = (position, known) => {
      return escaped(`${position}${known && tokens[position] !== undefined ? ` “${tokens[position]}”` : ""}`);
    };
    const seen = rows.map((row, query) => row.map((weight, key) => (key > query && !weight ? null : weight)));
    const sentence = (weight, query, key) => `${word(query, queries)} looks at ${word(key, keys)}: ${number(weight)}`;
    const text = seen.map((row, query) => row.map((weight, key) => sentence(weight, query, key)));
    return fill(plot, { z: [seen], text: [text] }, { autosize: true }); // its width was unknown while it was hidden
  }

  function explain() {
    const key = `${selection.layer}.${selection.head}`;
    const shown = data.maps?.weights[key];
    const short = shown && data.maps.full > shown.length;
    note.hidden = !(short || (!shown && (data.maps || data.mapCommand)));
    if (short) {
      note.textContent = `Of its attention map, the first ${shown.length} of ${data.maps.full} tokens are shown.`;
    } else {
      note.textContent = "No attention map of this head was kept.";
      if (data.mapCommand) {
        // The command line counts attention layers alone, over all stacks.
        const command = sinkscope.element("code", {}, `${data.mapCommand} ${key}`);
        note.append(" This makes one: ", command);
      }
    }
  }

  const fillers = { profile, angles, keys, map: attention };
  let ready = false;
  function update() {
    explain();
    if (ready) return Promise.all(Object.entries(plots).map(([name, plot]) => fillers[name](plot)));
    return undefined;
  }

  document.addEventListener("drawn", async () => {
    ready = true;
    await update();
    document.documentElement.dataset.filled = document.documentElement.dataset.drawn;
  });
  selection.subscribe(update);
  update();
})();
