// Where in a text the entries of a condensed cache come from, for pictures.
#pragma once

#include <span>

#include "engine/session.h"
#include "report/result_row.h"

namespace precis {

// Fills everything but the key. session holds the condensed context, `context` its tokens. Numbers
// are rounded to 3 decimals: a picture shows no more. REQUIRES: a report with details
// (CondenseRequest::details).
KeptRow map_kept(const Session& session, const CompressionReport& report,
                 std::span<const Token> context);

}  // namespace precis
