"use strict";
// The library that draws, and long data, are packed in the page, where they take a third of the room. `unpacked` resolves
// once they are in place; the scripts of widgets wait for it.
globalThis.unpacked = (async () => {
  async function unpack(element) {
    const bytes = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }
  const library = document.createElement("script");
  library.textContent = await unpack(document.getElementById("plotly"));
  document.head.append(library);
  const packed = [...document.querySelectorAll("[data-packed]")];
  await Promise.all(packed.map(async (element) => { element.textContent = await unpack(element); }));
})();
