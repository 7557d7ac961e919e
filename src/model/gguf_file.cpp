#include "model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "model/ggml_log.h"

namespace precis {
namespace {

constexpr std::size_t kTensorAlignment = 32;  // ggml's kernels rely on it; GGUF's default alignment

// Refuses what ggml's reader would report poorly: each gets its own message.
std::size_t check_header(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0)
    throw Error(ErrorCode::kIo, concat("cannot open model '", path, "': ", std::strerror(errno)));
  if (S_ISDIR(info.st_mode))
    throw Error(ErrorCode::kIo,
                concat("model '", path, "' is a directory; give the .gguf file in it"));
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorCode::kIo, concat("model '", path, "' is not a regular file"));
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr)
    throw Error(ErrorCode::kIo, concat("cannot read model '", path, "': ", std::strerror(errno)));
  char head[64] = {};
  const std::size_t n = std::fread(head, 1, sizeof head, file);
  std::fclose(file);
  const std::string_view start(head, n);
  if (start.starts_with("version https://git-lfs"))
    throw Error(ErrorCode::kFormat, concat("'", path,
                                           "' is a git-lfs pointer, not the model itself; "
                                           "fetch the real file with 'git lfs pull'"));
  if (n < 24)
    throw Error(ErrorCode::kFormat,
                concat("'", path, "' has ", n,
                       " bytes; a GGUF file has at least 24: it is empty or cut short"));
  if (!start.starts_with("GGUF"))
    throw Error(ErrorCode::kFormat,
                concat("'", path, "' is not a GGUF file (it does not begin with 'GGUF')"));
  return static_cast<std::size_t>(info.st_size);
}

}  // namespace

GgufFile::GgufFile(const std::string& path)
    : path_(path), file_bytes_(check_header(path)), gguf_(nullptr, gguf_free) {
  LogCapture log;
  gguf_.reset(gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, /*ctx=*/nullptr}));
  if (!gguf_)
    throw Error(ErrorCode::kFormat,
                concat("'", path, "' is not a sound GGUF file (", file_bytes_,
                       " bytes): ", log.first_error("its header is damaged or cut short")));
  if (find_uint("split.count").value_or(1) > 1)
    throw Error(ErrorCode::kUnsupported,
                concat("'", path, "' is one of ", uint("split.count"),
                       " parts; join them with llama.cpp's gguf-split first"));
  map();
  try {
    list_tensors();
  } catch (...) {
    munmap(mapping_, file_bytes_);
    throw;
  }
}

GgufFile::~GgufFile() { munmap(mapping_, file_bytes_); }

void GgufFile::map() {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    throw Error(ErrorCode::kIo, concat("cannot read model '", path_, "': ", std::strerror(errno)));
  mapping_ = mmap(nullptr, file_bytes_, PROT_READ, MAP_SHARED, fd, 0);
  const int saved = errno;
  close(fd);
  if (mapping_ == MAP_FAILED)
    throw Error(ErrorCode::kIo, concat("cannot map model '", path_, "' (", file_bytes_,
                                       " bytes): ", std::strerror(saved)));
}

void GgufFile::list_tensors() {
  const std::int64_t n = gguf_get_n_tensors(gguf_.get());
  const std::size_t data_offset = gguf_get_data_offset(gguf_.get());
  tensors_.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    Tensor t;
    t.name = gguf_get_tensor_name(gguf_.get(), i);
    t.type = gguf_get_tensor_type(gguf_.get(), i);
    t.bytes = gguf_get_tensor_size(gguf_.get(), i);
    std::memcpy(t.ne, gguf_get_tensor_ne(gguf_.get(), i), sizeof t.ne);
    const std::size_t offset = gguf_get_tensor_offset(gguf_.get(), i);
    // The reader does not look at the file's size when it loads no data.
    if (data_offset > file_bytes_ || offset > file_bytes_ - data_offset ||
        t.bytes > file_bytes_ - data_offset - offset)
      throw Error(ErrorCode::kFormat, concat("'", path_, "' is cut short: tensor '", t.name,
                                             "' ends at byte ", data_offset + offset + t.bytes,
                                             " but the file has ", file_bytes_, " bytes"));
    t.data = static_cast<const char*>(mapping_) + data_offset + offset;
    if ((data_offset + offset) % kTensorAlignment != 0)
      throw Error(ErrorCode::kUnsupported,
                  concat("tensor '", t.name, "' in '", path_, "' begins at byte ",
                         data_offset + offset, ", which is not a multiple of ", kTensorAlignment));
    tensors_.push_back(std::move(t));
  }
}

std::int64_t GgufFile::key_id(const std::string& key) const {
  return gguf_find_key(gguf_.get(), key.c_str());
}

bool GgufFile::has(const std::string& key) const { return key_id(key) >= 0; }

void GgufFile::wrong_type(const std::string& key, const char* wanted) const {
  const std::int64_t id = key_id(key);
  if (id < 0)
    throw Error(ErrorCode::kFormat, concat("'", path_, "' has no metadata key '", key, "'"));
  throw Error(ErrorCode::kFormat,
              concat("metadata key '", key, "' in '", path_, "' should be ", wanted, ", not ",
                     gguf_type_name(gguf_get_kv_type(gguf_.get(), id))));
}

std::optional<std::string> GgufFile::find_string(const std::string& key) const {
  const std::int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_STRING) wrong_type(key, "a string");
  return std::string(gguf_get_val_str(gguf_.get(), id));
}

std::optional<std::uint64_t> GgufFile::find_uint(const std::string& key) const {
  const std::int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  const gguf_context* g = gguf_.get();
  std::int64_t value = -1;
  switch (gguf_get_kv_type(g, id)) {
    case GGUF_TYPE_UINT8:
      value = gguf_get_val_u8(g, id);
      break;
    case GGUF_TYPE_INT8:
      value = gguf_get_val_i8(g, id);
      break;
    case GGUF_TYPE_UINT16:
      value = gguf_get_val_u16(g, id);
      break;
    case GGUF_TYPE_INT16:
      value = gguf_get_val_i16(g, id);
      break;
    case GGUF_TYPE_UINT32:
      value = gguf_get_val_u32(g, id);
      break;
    case GGUF_TYPE_INT32:
      value = gguf_get_val_i32(g, id);
      break;
    case GGUF_TYPE_UINT64:
      value = static_cast<std::int64_t>(gguf_get_val_u64(g, id));
      break;
    case GGUF_TYPE_INT64:
      value = gguf_get_val_i64(g, id);
      break;
    default:
      wrong_type(key, "an integer");
  }
  if (value < 0)
    throw Error(ErrorCode::kFormat, concat("metadata key '", key, "' in '", path_, "' is ", value,
                                           "; it must not be negative"));
  return static_cast<std::uint64_t>(value);
}

std::optional<double> GgufFile::find_float(const std::string& key) const {
  const std::int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  double value = 0;
  switch (gguf_get_kv_type(gguf_.get(), id)) {
    case GGUF_TYPE_FLOAT32:
      value = gguf_get_val_f32(gguf_.get(), id);
      break;
    case GGUF_TYPE_FLOAT64:
      value = gguf_get_val_f64(gguf_.get(), id);
      break;
    default:
      wrong_type(key, "a float");
  }
  if (!std::isfinite(value))
    throw Error(ErrorCode::kFormat,
                concat("metadata key '", key, "' in '", path_, "' is not finite"));
  return value;
}

std::optional<bool> GgufFile::find_bool(const std::string& key) const {
  const std::int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_BOOL) wrong_type(key, "a boolean");
  return gguf_get_val_bool(gguf_.get(), id);
}

std::string GgufFile::string(const std::string& key) const {
  auto value = find_string(key);
  if (!value) wrong_type(key, "a string");
  return *value;
}

std::uint64_t GgufFile::uint(const std::string& key) const {
  auto value = find_uint(key);
  if (!value) wrong_type(key, "an integer");
  return *value;
}

std::optional<std::uint64_t> GgufFile::find_uniform_uint(const std::string& key) const {
  const std::int64_t id = key_id(key);
  if (id < 0) return std::nullopt;
  if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY) return find_uint(key);
  const gguf_type element = gguf_get_arr_type(gguf_.get(), id);
  if (element != GGUF_TYPE_UINT32 && element != GGUF_TYPE_INT32)
    wrong_type(key, "an array of 32-bit integers");
  const std::size_t n = gguf_get_arr_n(gguf_.get(), id);
  const auto* data = static_cast<const std::uint32_t*>(gguf_get_arr_data(gguf_.get(), id));
  if (n == 0) wrong_type(key, "a non-empty array");
  for (std::size_t i = 1; i < n; ++i)
    if (data[i] != data[0])
      throw Error(ErrorCode::kUnsupported,
                  concat("metadata key '", key, "' in '", path_, "' differs between layers (",
                         data[0], " and ", data[i], "), which Precis cannot run"));
  if (data[0] > 0x7fffffffu)
    throw Error(ErrorCode::kFormat,
                concat("metadata key '", key, "' in '", path_, "' is out of range: ", data[0]));
  return data[0];
}

std::optional<std::vector<bool>> GgufFile::find_bools(const std::string& key) const {
  const std::int64_t id = key_id(key);
  if (id < 0 || gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY) return std::nullopt;
  const gguf_type element = gguf_get_arr_type(gguf_.get(), id);
  const std::size_t n = gguf_get_arr_n(gguf_.get(), id);
  std::vector<bool> values(n);
  if (element == GGUF_TYPE_BOOL || element == GGUF_TYPE_UINT8 || element == GGUF_TYPE_INT8) {
    const auto* data = static_cast<const std::uint8_t*>(gguf_get_arr_data(gguf_.get(), id));
    for (std::size_t i = 0; i < n; ++i) values[i] = data[i] != 0;
  } else if (element == GGUF_TYPE_UINT32 || element == GGUF_TYPE_INT32) {
    const auto* data = static_cast<const std::uint32_t*>(gguf_get_arr_data(gguf_.get(), id));
    for (std::size_t i = 0; i < n; ++i) values[i] = data[i] != 0;
  } else {
    wrong_type(key, "an array of booleans or integers");
  }
  return values;
}

std::size_t GgufFile::array_length(const std::string& key, gguf_type element) const {
  const std::int64_t id = key_id(key);
  if (id < 0) return 0;
  const std::string wanted = concat("an array of ", gguf_type_name(element));
  if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY) wrong_type(key, wanted.c_str());
  if (gguf_get_arr_type(gguf_.get(), id) != element)
    throw Error(ErrorCode::kFormat,
                concat("metadata key '", key, "' in '", path_, "' should be ", wanted, ", not of ",
                       gguf_type_name(gguf_get_arr_type(gguf_.get(), id))));
  return gguf_get_arr_n(gguf_.get(), id);
}

std::string_view GgufFile::array_string(const std::string& key, std::size_t i) const {
  return gguf_get_arr_str(gguf_.get(), key_id(key), i);
}

const GgufFile::Tensor* GgufFile::find_tensor(const std::string& name) const {
  const std::int64_t id = gguf_find_tensor(gguf_.get(), name.c_str());
  return id < 0 ? nullptr : &tensors_[static_cast<std::size_t>(id)];
}

void GgufFile::prefault() const {
  // MADV_POPULATE_READ (Linux 5.14) maps every page; older kernels at least start reading.
#ifdef MADV_POPULATE_READ
  if (madvise(mapping_, file_bytes_, MADV_POPULATE_READ) == 0) return;
#endif
  madvise(mapping_, file_bytes_, MADV_WILLNEED);
}

void GgufFile::release_pages(const Tensor& tensor) const {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<std::uintptr_t>(tensor.data) + page - 1) / page * page;
  const auto last = (reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.bytes) / page * page;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace precis
