#include "report/html_style.h"

namespace precis {

// Adds what a page without script can do without: the button for the theme and sorting by columns.
const char* const kReportScript = R"js(
"use strict";
(function () {
  var root = document.documentElement;
  var button = document.getElementById("theme");
  function isDark() {
    var chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function label() {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
  }
  if (button) {
    button.hidden = false;
    label();
    button.addEventListener("click", function () {
      root.dataset.theme = isDark() ? "light" : "dark";
      label();
    });
  }

  function key(row, column) {
    var cell = row.cells[column];
    if (!cell) return "";
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  }
  function compare(a, b) {
    var numbers = (typeof a === "number") + (typeof b === "number");
    if (numbers === 2) return a - b;
    if (numbers === 1) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, "en", { numeric: true });
  }
  function sort(table, column, down) {
    var body = table.tBodies[0];
    var rows = Array.prototype.map.call(body.rows, function (row, place) {
      return { row: row, place: place, key: key(row, column) };
    });
    rows.sort(function (a, b) {
      return (down ? -1 : 1) * compare(a.key, b.key) || a.place - b.place;
    });
    rows.forEach(function (item) { body.appendChild(item.row); });
  }
  function makeSortable(table) {
    var headers = table.tHead.rows[0].cells;
    Array.prototype.forEach.call(headers, function (header, column) {
      var control = document.createElement("button");
      control.type = "button";
      control.className = "sort";
      while (header.firstChild) control.appendChild(header.firstChild);
      if (header.title) {
        control.title = header.title;
        header.removeAttribute("title");
      }
      header.appendChild(control);
      control.addEventListener("click", function () {
        var down = header.getAttribute("aria-sort") === "ascending";
        Array.prototype.forEach.call(headers, function (other) { other.removeAttribute("aria-sort"); });
        header.setAttribute("aria-sort", down ? "descending" : "ascending");
        sort(table, column, down);
      });
    });
  }
  Array.prototype.forEach.call(document.querySelectorAll("table.sortable"), function (table) {
    if (table.tBodies[0].rows.length > 1) makeSortable(table);
  });
})();
)js";

}  // namespace precis
