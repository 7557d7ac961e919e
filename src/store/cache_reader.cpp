#include "store/cache_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "store/byte_fields.h"

namespace precis {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of one call
// Sums of sizes below this cannot overflow.
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 48;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kIo, concat("cannot read the cache file '", path, "': ", why));
}

}  // namespace

CacheReader::CacheReader(const std::string& path) : path_(path) {
  // Not to wait for the other end of a pipe, which is refused next.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) refuse(path, std::strerror(errno));
  try {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) refuse(path, std::strerror(errno));
    if (S_ISDIR(info.st_mode)) refuse(path, "it is a directory");
    if (!S_ISREG(info.st_mode)) refuse(path, "it is not a regular file");
    file_bytes_ = static_cast<std::uint64_t>(info.st_size);
    read_header();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

CacheReader::~CacheReader() { ::close(fd_); }

void CacheReader::reject(const std::string& why) const {
  throw Error(ErrorCode::kFormat, concat("cache file '", path_, "': ", why,
                                         "; make it again with 'precis cache build'"));
}

void CacheReader::read_at(std::uint64_t offset, void* to, std::size_t n) const {
  auto* into = static_cast<char*>(to);
  while (n > 0) {
    const ssize_t got = ::pread(fd_, into, std::min(n, kMostBytes), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path_, std::strerror(errno));
    if (got == 0)
      reject(concat("it ended at byte ", offset, " but had ", file_bytes_,
                    " bytes when it was opened"));
    into += got;
    n -= static_cast<std::size_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
}

void CacheReader::read_header() {
  if (file_bytes_ < kHeaderBytes)
    reject(concat("it has ", file_bytes_, " bytes, the header alone has ", kHeaderBytes,
                  ": it is no cache file, or cut short"));
  std::uint8_t header[kHeaderBytes];
  read_at(0, header, sizeof header);
  if (std::memcmp(header, kCacheMagic, sizeof kCacheMagic) != 0)
    reject("it does not begin with 'PRECISKV', so it is no cache file");
  ByteReader in(header);
  in.text(sizeof kCacheMagic);
  const auto version = in.number<std::uint32_t>();
  if (version != kCacheVersion)
    throw Error(ErrorCode::kUnsupported,
                concat("cache file '", path_, "' has version ", version,
                       " of the format, this program reads ", kCacheVersion,
                       "; make it again with 'precis cache build'"));
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, header + kHeaderChecksum, sizeof checksum);
  if (checksum != checksum_of(header, kHeaderChecksum))
    reject("the header's checksum is not that of its bytes: the file is damaged");
  const auto n_sections = in.number<std::uint32_t>();
  const auto bytes = in.number<std::uint64_t>();
  const auto table_checksum = in.number<std::uint64_t>();
  if (bytes != file_bytes_)
    reject(concat("the header says ", bytes, " bytes but the file has ", file_bytes_,
                  bytes > file_bytes_ ? ": it is cut short" : ": it has grown"));
  if (file_bytes_ > kMostFileBytes)
    reject(concat("it has ", file_bytes_, " bytes, at most ", kMostFileBytes, " are read"));
  if (n_sections <= kFileSections || (n_sections - kFileSections) % kLayerSections != 0)
    reject(concat("the header says ", n_sections, " sections, which is not ", kFileSections,
                  " and ", kLayerSections, " for each layer"));
  if (kHeaderBytes + std::uint64_t{n_sections} * kTableEntryBytes > file_bytes_)
    reject(concat("a table of ", n_sections, " sections has ",
                  std::uint64_t{n_sections} * kTableEntryBytes, " bytes, but the file only ",
                  file_bytes_));
  n_layers_ = (n_sections - kFileSections) / kLayerSections;
  read_table(table_checksum);
}

void CacheReader::read_table(std::uint64_t checksum) {
  std::vector<Section> order = section_order(n_layers_);
  std::vector<std::uint8_t> table(padded(order.size() * kTableEntryBytes));
  if (kHeaderBytes + table.size() > file_bytes_)
    reject(concat("the table ends at byte ", kHeaderBytes + table.size(), " but the file has ",
                  file_bytes_));
  read_at(kHeaderBytes, table.data(), table.size());
  if (checksum != checksum_of(table.data(), table.size()))
    reject("the table's checksum is not that of its bytes: the file is damaged");
  ByteReader in(table);
  std::uint64_t offset = kHeaderBytes + table.size();
  for (Section& section : order) {
    const auto kind = in.number<std::uint32_t>();
    const auto layer = in.number<std::uint32_t>();
    const std::string name = section.name();
    if (kind != static_cast<std::uint32_t>(section.kind) || layer != section.layer)
      reject(concat("in place of ", name, " (kind ", static_cast<std::uint32_t>(section.kind),
                    ") the table has kind ", kind, " of layer ", layer));
    section.offset = in.number<std::uint64_t>();
    section.bytes = in.number<std::uint64_t>();
    section.checksum = in.number<std::uint64_t>();
    if (section.offset != offset)
      reject(
          concat(name, " begins at byte ", section.offset, " but the one before ends at ", offset));
    if (section.bytes > file_bytes_ - offset || padded(section.bytes) > file_bytes_ - offset)
      reject(concat(name, " has ", section.bytes, " bytes from byte ", offset,
                    " on, but the file has ", file_bytes_));
    offset += padded(section.bytes);
  }
  if (offset != file_bytes_)
    reject(concat("the last section ends at byte ", offset, " but the file has ", file_bytes_));
  sections_ = std::move(order);
}

std::vector<std::uint8_t> CacheReader::read(const Section& section) const {
  std::vector<std::uint8_t> out(section.bytes);
  SectionStream stream(*this, section);
  stream.read(out.data(), out.size());
  stream.finish();
  return out;
}

void SectionStream::read(void* to, std::size_t n) {
  PRECIS_CHECK(n <= section_.bytes - done_, n, " of ", section_.bytes, " at ", done_);
  reader_.read_at(section_.offset + done_, to, n);
  checksum_.add(to, n);
  done_ += n;
  std::uint8_t gap[kSectionAlignment] = {};
  const std::size_t n_gap = padded(done_) - done_;
  reader_.read_at(section_.offset + done_, gap, n_gap);
  for (const std::uint8_t byte : gap)
    if (byte != 0)
      reader_.reject(concat(section_.name(), ": the gap before its byte ", done_ + n_gap, " holds ",
                            static_cast<unsigned>(byte), ", not 0"));
  checksum_.add(gap, n_gap);
  done_ = std::min(section_.bytes, done_ + n_gap);
}

void SectionStream::finish() {
  PRECIS_CHECK(done_ == section_.bytes, done_, " of ", section_.bytes);
  if (checksum_.value() != section_.checksum)
    reader_.reject(
        concat(section_.name(), " has another checksum than its bytes: the file is damaged"));
}

}  // namespace precis
