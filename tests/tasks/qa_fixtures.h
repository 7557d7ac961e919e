// Invented questions in the formats of SQuAD and HotpotQA.
#pragma once

namespace precis::test {

// Two articles of three paragraphs, six questions: one without an answer, one with two spellings.
inline constexpr const char* kSquadJson = R"json({
 "version": "invented", "data": [
 {"title": "Orvane", "paragraphs": [
  {"context": "Orvane is a harbor town on the northern coast of Melluria. It was founded by the glass merchant Tessa Wrenfold, who built its first pier of green stone. The town lies between two rivers and is flooded nearly every spring.",
   "qas": [
    {"id": "a", "question": "Who founded the town of green stone piers?", "is_impossible": false,
     "answers": [{"text": "Tessa Wrenfold", "answer_start": 68}, {"text": "Wrenfold", "answer_start": 74}, {"text": "Tessa Wrenfold", "answer_start": 68}]},
    {"id": "b", "question": "Which king owned the pier?", "is_impossible": true, "answers": []}]},
  {"context": "The lighthouse of Orvane burns the oil of the pale nut. Its keeper may not leave the tower in winter, and is paid in salt. A bell is rung when fog comes in from the sea, three times for each boat that is still out.",
   "qas": [{"id": "c", "question": "In what is the keeper paid?", "answers": [{"text": "salt", "answer_start": 116}]}]},
  {"context": "Every ninth year the people of the town hold the Feast of Ladders. Each household carries a ladder to the market, and the longest is burned at midnight by the youngest baker.",
   "qas": [{"id": "d", "question": "What is held every ninth year?", "answers": [{"text": "Feast of Ladders", "answer_start": 49}]}]}]},
 {"title": "Quillback", "paragraphs": [
  {"context": "The quillback is a small mammal of the Hesper highlands. It sleeps in hollow reeds and eats blue moths, which it catches with its tail. Adults weigh less than a walnut.",
   "qas": [{"id": "e", "question": "What does the small mammal eat?", "answers": [{"text": "blue moths", "answer_start": 92}]}]},
  {"context": "Young quillbacks are blind for forty days. They are carried in a basket of hair that both parents weave, and learn to whistle before they learn to walk.",
   "qas": [{"id": "f", "question": "How long are the young blind?", "answers": [{"text": "forty days", "answer_start": 31}]}]},
  {"context": "Herders keep the animal as a guest. A house with a quillback in its roof is said to be safe from lightning, and nobody would sell one for money.",
   "qas": []}]}]})json";

// Three questions; the last one's fact is not among its paragraphs.
inline constexpr const char* kHotpotJson = R"json([
 {"_id": "1", "question": "In which valley was the builder of the Lantern Bridge born?", "answer": "Sorrel Valley",
  "supporting_facts": [["Lantern Bridge", 0], ["Ivo Marrick", 1]], "type": "bridge", "level": "easy",
  "context": [["Lantern Bridge", ["The Lantern Bridge was built by Ivo Marrick.", " It has eleven arches."]],
              ["Ivo Marrick", ["Ivo Marrick was a builder of bridges.", " He was born in Sorrel Valley."]],
              ["Copper Gate", ["The Copper Gate closes the old town to the west.", " It is never painted."]],
              ["Dunmere", ["Dunmere is a lake without fish."]]]},
 {"_id": "2", "question": "Which instrument did the author of The Ninth Orchard play?", "answer": "bone flute",
  "supporting_facts": [["The Ninth Orchard", 0], ["Pell Anwick", 0], ["Pell Anwick", 1]],
  "context": [["Pell Anwick", ["Pell Anwick was a writer.", " She played the bone flute."]],
              ["The Ninth Orchard", ["The Ninth Orchard is a novel by Pell Anwick."]],
              ["Dunmere", ["Dunmere is a lake without fish."]],
              ["Harrow Salt", ["Harrow Salt is a game for three players.", " The loser pours the tea."]]]},
 {"_id": "3", "question": "Who painted the gate?", "answer": "nobody",
  "supporting_facts": [["Painters of gates", 0]],
  "context": [["Copper Gate", ["The Copper Gate closes the old town to the west.", " It is never painted."]]]}
])json";

}  // namespace precis::test
