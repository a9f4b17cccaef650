"use strict";
// The library that draws is packed in the page, where it takes a third of the room; `plotly` resolves once it is there.
globalThis.plotly = (async () => {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const code = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(code).text();
  document.head.append(script);
})();
