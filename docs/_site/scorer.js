// Sphinx gives a page 15 points for a word in a title and 5 for a word in the text, and 100 for an entry of the index.
// Many pages have the same points. Among these, guides come first, and pages that compare, prove or explain come last.
var Scorer = {
  places: { guides: 60, tutorial: 30, examples: 20, reference: 10 },
  score: ([page, , , , points]) => points + (page.endsWith("/index") ? 0 : (Scorer.places[page.split("/")[0]] ?? 0)),
  // Sphinx's own:
  ...{ objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0 },
  ...{ title: 15, partialTitle: 7, term: 5, partialTerm: 2 },
};
