#include "cache/kv_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "support/head_rows.h"

namespace precis {
namespace {

constexpr KvShape kShape{3, 8};

// A mark that tells head, row and channel apart, in keys (sign 0) and values (sign 1).
Half mark(std::size_t head, std::size_t token, std::size_t channel, bool value) {
  return {static_cast<std::uint16_t>((value ? 0x8000u : 0u) | (head << 12) | ((token % 256) << 4) |
                                     channel)};
}

// Appends rows whose content is their position.
void append(TailRows& rows, std::size_t n) {
  const std::size_t before = rows.size();
  rows.grow(n);
  for (std::size_t h = 0; h < rows.shape().n_kv_heads; ++h)
    for (std::size_t r = before; r < rows.size(); ++r)
      for (std::size_t c = 0; c < rows.shape().head_dim; ++c) {
        const auto token = static_cast<std::size_t>(rows.first_position()) + r;
        rows.key_row(h, r)[c] = mark(h, token, c, false);
        rows.value_row(h, r)[c] = mark(h, token, c, true);
      }
}

void expect_content(const TailRows& rows, std::size_t first, std::size_t n) {
  ASSERT_EQ(rows.size(), n);
  ASSERT_EQ(rows.first_position(), static_cast<std::int32_t>(first));
  ASSERT_EQ(rows.next_position(), static_cast<std::int32_t>(first + n));
  for (std::size_t h = 0; h < rows.shape().n_kv_heads; ++h) {
    const EntryView view = rows.head(h);
    ASSERT_EQ(view.n, n);
    ASSERT_EQ(view.bias, nullptr);
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t c = 0; c < rows.shape().head_dim; ++c) {
        ASSERT_EQ(view.keys[r * 8 + c], mark(h, first + r, c, false)) << h << " " << r << " " << c;
        ASSERT_EQ(view.values[r * 8 + c], mark(h, first + r, c, true)) << h << " " << r << " " << c;
      }
  }
}

TEST(TailRows, StartsEmpty) {
  const TailRows rows(kShape, 7);
  EXPECT_EQ(rows.size(), 0u);
  EXPECT_EQ(rows.allocated_bytes(), 0u);
  EXPECT_EQ(rows.used_bytes(), 0u);
  EXPECT_EQ(rows.first_position(), 7);
  EXPECT_EQ(rows.next_position(), 7);
}

TEST(TailRows, ReserveIsExactAndKeepsRows) {
  TailRows rows(kShape);
  append(rows, 5);
  rows.reserve(100);
  EXPECT_EQ(rows.allocated_bytes(), 100 * 3 * kShape.row_pair_bytes());
  EXPECT_EQ(rows.used_bytes(), 5 * 3 * kShape.row_pair_bytes());
  rows.reserve(10);
  EXPECT_EQ(rows.allocated_bytes(), 100 * 3 * kShape.row_pair_bytes());
  expect_content(rows, 0, 5);
}

TEST(TailRows, GrowNeverHoldsMoreThanHalfAgain) {
  TailRows rows(kShape);
  for (std::size_t n = 1; n <= 1000; ++n) {
    append(rows, 1);
    if (n <= 64) continue;
    EXPECT_LE(rows.allocated_bytes(), rows.used_bytes() * 3 / 2 + kShape.row_pair_bytes() * 3) << n;
  }
  expect_content(rows, 0, 1000);
}

TEST(TailRows, DropFrontMovesPositionsAndFreesMemory) {
  TailRows rows(kShape, 100);
  append(rows, 90);
  rows.drop_front(60);
  expect_content(rows, 160, 30);
  EXPECT_EQ(rows.allocated_bytes(), rows.used_bytes());
  rows.drop_front(0);
  expect_content(rows, 160, 30);
  append(rows, 3);
  expect_content(rows, 160, 33);
  rows.drop_front(33);
  expect_content(rows, 193, 0);
}

TEST(TailRows, TruncateThenGrowOverwrites) {
  TailRows rows(kShape);
  append(rows, 20);
  rows.truncate(12);
  expect_content(rows, 0, 12);
  append(rows, 10);
  expect_content(rows, 0, 22);
}

TEST(TailRows, ClearFreesAndKeepsPosition) {
  TailRows rows(kShape, 5);
  append(rows, 9);
  rows.clear();
  expect_content(rows, 5, 0);
  EXPECT_EQ(rows.allocated_bytes(), 0u);
  append(rows, 2);
  expect_content(rows, 5, 2);
}

TEST(TailRows, CopiesAreIndependent) {
  TailRows rows(kShape);
  append(rows, 10);
  TailRows fork = rows;
  append(fork, 5);
  rows.key_row(0, 0)[0] = Half{0x1234};
  expect_content(fork, 0, 15);
  EXPECT_EQ(rows.size(), 10u);
  rows.key_row(0, 0)[0] = mark(0, 0, 0, false);
  expect_content(rows, 0, 10);
}

TEST(TailRows, RandomHistoriesMatchAModel) {
  std::mt19937 draw(1);
  for (int round = 0; round < 50; ++round) {
    TailRows rows(kShape, static_cast<std::int32_t>(draw() % 10));
    auto first = static_cast<std::size_t>(rows.first_position());
    std::size_t n = 0;
    for (int step = 0; step < 40; ++step) {
      const std::size_t amount = draw() % 40;
      switch (draw() % 5) {
        case 0:
        case 1:
          append(rows, amount), n += amount;
          break;
        case 2:
          n = std::min(n, amount), rows.truncate(n);
          break;
        case 3:
          rows.reserve(amount * 4);
          break;
        case 4:
          rows.drop_front(std::min(n, amount)), first += std::min(n, amount),
              n -= std::min(n, amount);
          break;
      }
      ASSERT_NO_FATAL_FAILURE(expect_content(rows, first, n));
      ASSERT_GE(rows.allocated_bytes(), rows.used_bytes());
    }
  }
}

TEST(TailRowsDeathTest, ImpossibleSizesAreBugs) {
  TailRows rows(kShape);
  append(rows, 3);
  EXPECT_DEATH(rows.truncate(4), "check failed");
  EXPECT_DEATH(rows.drop_front(4), "check failed");
}

FrozenLayer::Head make_head(std::size_t head, const std::vector<std::size_t>& tokens) {
  FrozenLayer::Head out;
  std::vector<Half> keys, values;
  for (const std::size_t token : tokens) {
    for (std::size_t c = 0; c < kShape.head_dim; ++c) {
      keys.push_back(mark(head, token, c, false));
      values.push_back(mark(head, token, c, true));
    }
    out.positions.push_back(static_cast<std::int32_t>(token));
  }
  out.rows = PackedList::from_rows({}, kShape.head_dim,
                                   {keys.data(), values.data(), nullptr, tokens.size()});
  return out;
}

TEST(FrozenLayer, KeepsRaggedHeadsApart) {
  const std::vector<std::vector<std::size_t>> tokens = {{1, 4, 9}, {}, {0, 2, 3, 5, 8}};
  std::vector<FrozenLayer::Head> heads;
  for (std::size_t h = 0; h < 3; ++h) heads.push_back(make_head(h, tokens[h]));
  heads[2].bias = {0, 0.5f, 0, -1, 2};
  const FrozenLayer layer(kShape, std::move(heads));
  for (std::size_t h = 0; h < 3; ++h) {
    const test::HeadRows view(layer, h);
    ASSERT_EQ(view.n, tokens[h].size());
    ASSERT_EQ(layer.n_entries(h), tokens[h].size());
    EXPECT_EQ(layer.n_residual(h), 0u);
    for (std::size_t i = 0; i < view.n; ++i) {
      EXPECT_EQ(layer.position(h, i), static_cast<std::int32_t>(tokens[h][i]));
      EXPECT_EQ(view.keys[i * 8 + 3], mark(h, tokens[h][i], 3, false));
      EXPECT_EQ(view.values[i * 8 + 7], mark(h, tokens[h][i], 7, true));
      ASSERT_NE(view.bias, nullptr);
      EXPECT_EQ(view.bias[i], h == 2 ? (std::vector<float>{0, 0.5f, 0, -1, 2})[i] : 0.0f);
    }
  }
  EXPECT_EQ(layer.bytes(), 8 * (kShape.row_pair_bytes() + 4 + 4));
}

TEST(FrozenLayer, ResidualEntriesAreASectionOfTheirOwn) {
  std::vector<FrozenLayer::Head> heads;
  for (std::size_t h = 0; h < 3; ++h) heads.push_back(make_head(h, {1, 2, 5}));
  heads[1].residual_rows = make_head(1, {8, 9}).rows;
  heads[1].residual_bias = {0.5f, 2};
  heads[1].gate = {0.2f, 0.8f, 0.1f};
  const FrozenLayer layer(kShape, std::move(heads));
  EXPECT_EQ(layer.head(1).n, 3u);
  EXPECT_EQ(layer.head(1).bias, nullptr) << "no main entry has one";
  EXPECT_EQ(layer.n_main(1), 3u);
  EXPECT_EQ(layer.n_residual(1), 2u);
  EXPECT_EQ(layer.n_entries(1), 5u);
  EXPECT_EQ(layer.n_entries(0), 3u);
  EXPECT_EQ(layer.residual(0).n, 0u);
  const auto rows = test::HeadRows::residual(layer, 1);
  ASSERT_EQ(rows.n, 2u);
  EXPECT_EQ(rows.keys[8 + 3], mark(1, 9, 3, false));
  EXPECT_EQ(rows.values[7], mark(1, 8, 7, true));
  EXPECT_EQ(rows.bias[1], 2.0f);
  EXPECT_EQ(layer.gate(1), (SharpnessGate{0.2f, 0.8f, 0.1f}));
  EXPECT_TRUE(layer.gate(2).is_off());
  // A residual entry has a bias and no position, a main entry here the other way round.
  EXPECT_EQ(layer.bytes(), 11 * (kShape.row_pair_bytes() + 4));
}

TEST(FrozenLayer, StoresNoBiasIfAllAreZero) {
  std::vector<FrozenLayer::Head> heads;
  for (std::size_t h = 0; h < 3; ++h) heads.push_back(make_head(h, {1, 2}));
  heads[1].bias = {0, -0.0f};
  const FrozenLayer layer(kShape, std::move(heads));
  EXPECT_EQ(layer.head(0).bias, nullptr);
  EXPECT_EQ(layer.bytes(), 6 * (kShape.row_pair_bytes() + 4));
}

TEST(FrozenLayer, MixesGivenAndImplicitPositions) {
  std::vector<FrozenLayer::Head> heads;
  for (std::size_t h = 0; h < 3; ++h) heads.push_back(make_head(h, {30, 40}));
  heads[1].positions.clear();
  const FrozenLayer layer(kShape, std::move(heads), 20);
  EXPECT_EQ(layer.position(0, 1), 40);
  EXPECT_EQ(layer.position(1, 0), 20);
  EXPECT_EQ(layer.position(1, 1), 21);
  EXPECT_EQ(layer.position(2, 0), 30);
}

TEST(FrozenLayer, FromTailIsTheTail) {
  TailRows rows(kShape, 11);
  append(rows, 70);
  const FrozenLayer layer = FrozenLayer::from_tail(rows);
  EXPECT_EQ(layer.bytes(), rows.used_bytes());
  for (std::size_t h = 0; h < 3; ++h) {
    const EntryView from = rows.head(h);
    const test::HeadRows to(layer, h);
    ASSERT_EQ(to.n, 70u);
    EXPECT_EQ(to.bias, nullptr);
    EXPECT_TRUE(std::equal(from.keys, from.keys + 70 * 8, to.keys.data()));
    EXPECT_TRUE(std::equal(from.values, from.values + 70 * 8, to.values.data()));
    EXPECT_EQ(layer.position(h, 0), 11);
    EXPECT_EQ(layer.position(h, 69), 80);
  }
}

TEST(FrozenLayer, EmptyTailGivesNoEntries) {
  const FrozenLayer layer = FrozenLayer::from_tail(TailRows(kShape, 3));
  EXPECT_EQ(layer.n_entries(2), 0u);
  EXPECT_EQ(layer.bytes(), 0u);
}

TEST(FrozenLayerDeathTest, SizesThatDisagreeAreBugs) {
  const auto build = [](auto change) {
    std::vector<FrozenLayer::Head> heads;
    for (std::size_t h = 0; h < 3; ++h) heads.push_back(make_head(h, {1, 2}));
    change(heads);
    return FrozenLayer(kShape, std::move(heads));
  };
  EXPECT_DEATH(build([](auto& heads) { heads.pop_back(); }), "check failed");
  EXPECT_DEATH(
      build([](auto& heads) {
        const std::vector<Half> row(16);
        heads[0].rows = PackedList::from_rows({}, 16, {row.data(), row.data(), nullptr, 1});
        heads[0].positions = {1};
      }),
      "check failed");
  EXPECT_DEATH(build([](auto& heads) { heads[0].bias = {1.0f}; }), "check failed");
  EXPECT_DEATH(build([](auto& heads) { heads[0].positions.push_back(3); }), "check failed");
  EXPECT_DEATH(build([](auto& heads) { heads[0].residual_bias = {1.0f}; }), "check failed");
  EXPECT_DEATH(build([](auto& heads) { heads[0].residual_rows = make_head(0, {3}).rows; }),
               "check failed");
}

}  // namespace
}  // namespace precis
