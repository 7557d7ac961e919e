// What `precis methods --audit` found, for people and for machines.
#pragma once

#include <string>

#include "eval/method_audit.h"

namespace precis::app {

// Where and of what the audit was made.
struct AuditSetting {
  std::string model;
  std::string model_sha256;
  std::string text;  // name of the file
  std::string keep;
  std::uint64_t seed = 0;
};

// A line for each method: what it keeps, the method that keeps most alike, and those that keep the
// same.
std::string print_audit(const MethodAudit& audit, const AuditOptions& options,
                        const AuditSetting& setting);
// One JSON object on one line, with every pair.
std::string audit_json(const MethodAudit& audit, const AuditOptions& options,
                       const AuditSetting& setting);
// One sentence that names every faulty pair; empty if there is none.
std::string audit_faults(const MethodAudit& audit, const AuditOptions& options);

}  // namespace precis::app
