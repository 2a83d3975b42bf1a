// Asks the search of a built site, in Node: node site_search.mjs FOLDER QUERY... prints the pages of the results, best first.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const [folder, ...queries] = process.argv.slice(2);
const element = { lastChild: null };
const stubs = {
  document: { getElementById: () => element, querySelectorAll: () => [], documentElement: { dataset: {} } },
  DOCUMENTATION_OPTIONS: {},
  SPHINX_HIGHLIGHT_ENABLED: false,
  URLSearchParams,
  _: (text) => text,
  _ready: () => {},
};
stubs.window = stubs;
const files = ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"];
const code = files.map((file) => readFileSync(`${folder}/${file}`, "utf-8"));
const search = vm.runInNewContext([...code, "Search"].join(";\n"), stubs);
const pagesOf = (query) => search._performSearch(...search._parseQuery(query)).toReversed().map(([page]) => page);
console.log(JSON.stringify(Object.fromEntries(queries.map((query) => [query, pagesOf(query)]))));
