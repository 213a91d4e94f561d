#include "penstock/checkpoint/manifest.h"

#include <random>

#include <gtest/gtest.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"

#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using test::TempFolder;

Manifest example() {
  Manifest manifest;
  manifest.step = 100;
  manifest.penstock_version = "0.1.0";
  manifest.torch_version = "2.11.0";
  manifest.created = "2025-01-31T23:59:59Z";
  manifest.files = {{"model.safetensors", 1234, 0x0a2b3c4d}, {"trainer.json", 0, 0}};
  return manifest;
}

Manifest float16_example() {
  Manifest manifest = example();
  manifest.loss_scale = optim::LossScaleState{32768, 1234, 1};
  return manifest;
}

std::string replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_rejected(const std::string& text, const std::string& reason) {
  const std::string error = error_text<CheckpointError>([&] { parse_manifest(text, "runs/x"); });
  EXPECT_NE(error.find("checkpoint runs/x"), std::string::npos) << "got: " << error;
  EXPECT_NE(error.find(reason), std::string::npos) << "got: " << error;
}

TEST(Manifest, ReadsBackAsWritten) {
  EXPECT_EQ(parse_manifest(manifest_text(example()), "x"), example());
  Manifest without_files = example();
  without_files.files.clear();
  EXPECT_EQ(parse_manifest(manifest_text(without_files), "x"), without_files);
  EXPECT_EQ(parse_manifest(manifest_text(float16_example()), "x"), float16_example());
}

TEST(Manifest, TextIsStable) {
  EXPECT_EQ(manifest_text(example()),
            R"({
  "format": 1,
  "step": 100,
  "penstock_version": "0.1.0",
  "torch_version": "2.11.0",
  "created": "2025-01-31T23:59:59Z",
  "files": [
    {
      "name": "model.safetensors",
      "bytes": 1234,
      "crc32c": "0a2b3c4d"
    },
    {
      "name": "trainer.json",
      "bytes": 0,
      "crc32c": "00000000"
    }
  ],
  "crc32c": "d1e4450a"
}
)");
}

TEST(Manifest, TheLossScaleStandsBeforeTheFiles) {
  const std::string text = manifest_text(float16_example());
  EXPECT_NE(text.find(R"(
  "created": "2025-01-31T23:59:59Z",
  "loss_scale": {
    "scale": 32768.0,
    "clean_steps": 1234,
    "hysteresis_left": 1
  },
  "files": [
)"),
            std::string::npos)
      << text;
}

TEST(Manifest, EveryLossScaleReadsBackExactly) {
  for (const double scale : {1.0, 0.1, 3e-300, 16777216.0, 65535.999999999993}) {
    Manifest manifest = example();
    manifest.loss_scale = optim::LossScaleState{scale, 0, 0};
    EXPECT_EQ(parse_manifest(manifest_text(manifest), "x").loss_scale->scale, scale);
  }
}

TEST(Manifest, RejectsALossScaleThatCannotBe) {
  const std::string text = manifest_text(float16_example());
  const std::string where = "\"loss_scale\" in manifest.json has ";
  for (const char* scale : {"0", "0.0", "-1.0", "\"1\"", "null", "true", "[]"}) {
    expect_rejected(replace(text, "32768.0", scale),
                    where + "a \"scale\" that is no number above 0");
  }
  expect_rejected(replace(text, "32768.0", "1e999"), "manifest.json is not valid JSON");
  expect_rejected(replace(text, "32768.0", "NaN"), "manifest.json is not valid JSON");
  for (const char* count : {"-1", "1234.0", "\"1\"", "9223372036854775808"}) {
    expect_rejected(replace(text, "\"clean_steps\": 1234", cat("\"clean_steps\": ", count)),
                    where + "a \"clean_steps\" that is no whole number from 0 up");
    expect_rejected(replace(text, "\"hysteresis_left\": 1", cat("\"hysteresis_left\": ", count)),
                    where + "a \"hysteresis_left\" that is no whole number from 0 up");
  }
  expect_rejected(replace(text, "\"clean_steps\": 1234,", ""), where + "no field \"clean_steps\"");
  expect_rejected(replace(text, "\"scale\"", "\"x\":0,\"scale\""),
                  where + "an unknown field \"x\"");
  expect_rejected(replace(text, "\"scale\"", "\"scale\":1,\"scale\""), "repeats the key \"scale\"");
  expect_rejected(replace(text, "32768.0", "32769.0"), "manifest.json has checksum ");
}

TEST(Manifest, RejectsALossScaleThatIsNoObject) {
  const std::string plain = manifest_text(example());
  for (const char* value : {"null", "65536.0", "[]", "\"x\""}) {
    expect_rejected(replace(plain, "\"files\"", cat("\"loss_scale\": ", value, ", \"files\"")),
                    "\"loss_scale\" in manifest.json is no JSON object");
  }
}

TEST(Manifest, RejectsALossScaleThatWasTakenOutOrPutIn) {
  std::string text = manifest_text(float16_example());
  const size_t begin = text.find("\"loss_scale\""), end = text.find("\"files\"");
  const std::string taken = text.substr(begin, end - begin);
  expect_rejected(text.erase(begin, end - begin), "manifest.json has checksum ");
  expect_rejected(replace(manifest_text(example()), "\"files\"", taken + "\"files\""),
                  "manifest.json has checksum ");
}

class DamagedManifest : public testing::TestWithParam<bool> {
 protected:
  const Manifest manifest_ = GetParam() ? float16_example() : example();
};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutALossScale, DamagedManifest, testing::Bool());

TEST_P(DamagedManifest, EveryFlippedByteIsRejectedOrHarmless) {
  const std::string whole = manifest_text(manifest_);
  std::mt19937 random(99);
  int num_rejected = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int round = 0; round < 20; ++round) {
      std::string text = whole;
      text[at] = static_cast<char>(random());
      try {
        EXPECT_EQ(parse_manifest(text, "x"), manifest_) << "at byte " << at;
      } catch (const CheckpointError&) {
        ++num_rejected;
      }
    }
  }
  EXPECT_GT(num_rejected, 1000);
}

TEST_P(DamagedManifest, EveryCutIsRejected) {
  const std::string whole = manifest_text(manifest_);
  for (size_t size = 0; size + 1 < whole.size(); ++size) {  // the last byte is a line break
    EXPECT_THROW(parse_manifest(whole.substr(0, size), "x"), CheckpointError) << size;
  }
}

TEST(Manifest, RejectsWhatIsNoManifest) {
  const std::string text = manifest_text(example());
  expect_rejected("", "manifest.json is not valid JSON");
  expect_rejected("[]", "has no format number");
  expect_rejected("{}", "has no format number");
  expect_rejected(replace(text, "\"format\": 1", "\"format\": \"1\""), "has no format number");
  expect_rejected(replace(text, "\"step\": 100,", ""), "manifest.json has no field \"step\"");
  expect_rejected(replace(text, "\"step\"", "\"x\":0,\"step\""), "has an unknown field \"x\"");
  expect_rejected(replace(text, "\"step\"", "\"step\":1,\"step\""), "repeats the key \"step\"");
  expect_rejected(replace(text, "\"files\": [", "\"files\": [[[[["), "is nested deeper");
  expect_rejected(text + "x", "is not valid JSON");
  expect_rejected(text + std::string(1, '\0'), "zero byte");
}

TEST(Manifest, RejectsFieldsOfTheWrongType) {
  const std::string text = manifest_text(example());
  expect_rejected(replace(text, "100", "-100"), "a \"step\" that is no whole number");
  expect_rejected(replace(text, "100", "100.0"), "a \"step\" that is no whole number");
  expect_rejected(replace(text, "100", "9223372036854775808"), "\"step\" that is no whole number");
  expect_rejected(replace(text, "\"0.1.0\"", "null"), "a \"penstock_version\" that is no text");
  expect_rejected(replace(text, "23:59:59Z", "23:59:59"), "a \"created\" that is no time in UTC");
  expect_rejected(replace(text, "2025-", "20x5-"), "a \"created\" that is no time in UTC");
  expect_rejected(replace(text, "1234", "\"1234\""), "file 1 in manifest.json has a \"bytes\"");
  expect_rejected(replace(text, "0a2b3c4d", "0A2B3C4D"), "no checksum of eight hexadecimal digits");
  expect_rejected(replace(text, "0a2b3c4d", "a2b3c4d"), "no checksum of eight hexadecimal digits");
  expect_rejected(replace(text, "0a2b3c4d", ""), "no checksum of eight hexadecimal digits");
}

TEST(Manifest, RejectsFilesThatAreNoList) {
  std::string text = manifest_text(example());
  const size_t begin = text.find('['), end = text.find(']');
  expect_rejected(text.replace(begin, end + 1 - begin, "{}"), "a \"files\" that is no list");
  text = manifest_text(example());
  expect_rejected(text.replace(begin, end + 1 - begin, "[1]"),
                  "file 1 in manifest.json is no JSON");
}

TEST(Manifest, RejectsNamesThatLeaveTheFolder) {
  const std::string text = manifest_text(example());
  for (const std::string name : {"", ".", "..", "../x", "a/b", "/etc/passwd", "a..b", "a\\nb"}) {
    expect_rejected(replace(text, "trainer.json", name), "which is no plain file name");
  }
  expect_rejected(replace(text, "trainer.json", "manifest.json"), "which is no plain file name");
  expect_rejected(replace(text, "trainer.json", "model.safetensors"), "repeats the name");
}

TEST(Manifest, RejectsContentThatDoesNotMatchItsChecksum) {
  const std::string error = error_text<CheckpointError>(
      [&] { parse_manifest(replace(manifest_text(example()), "1234", "1235"), "runs/x"); });
  EXPECT_EQ(error.find("checkpoint runs/x is damaged: manifest.json has checksum "), 0u) << error;
  EXPECT_NE(error.find("; use an older checkpoint"), std::string::npos) << error;
}

TEST(Manifest, OtherFormatIsNotCalledDamage) {
  const std::string error = error_text<CheckpointError>(
      [&] { parse_manifest(R"({"format":2,"something":"else"})", "runs/x"); });
  EXPECT_EQ(error, "checkpoint runs/x has format 2; this Penstock reads format 1");
}

TEST(Manifest, RefusesToWriteWhatItWouldReject) {
  const auto refuses = [](auto change) {
    Manifest manifest = example();
    change(manifest);
    EXPECT_THROW(manifest_text(manifest), InternalError);
  };
  refuses([](Manifest& m) { m.step = -1; });
  refuses([](Manifest& m) { m.created = "yesterday"; });
  refuses([](Manifest& m) { m.penstock_version = "\xFF"; });
  refuses([](Manifest& m) { m.torch_version = "\xFF"; });
  refuses([](Manifest& m) { m.loss_scale = optim::LossScaleState{0, 0, 0}; });
  refuses([](Manifest& m) { m.loss_scale = optim::LossScaleState{1, -1, 0}; });
  refuses([](Manifest& m) { m.loss_scale = optim::LossScaleState{1, 0, -1}; });
  refuses([](Manifest& m) { m.files[0].name = "a/b"; });
  refuses([](Manifest& m) { m.files[0].name = "\xFF"; });
}

TEST(Manifest, NowIsATimeItAccepts) {
  Manifest manifest = example();
  manifest.created = utc_now();
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "x").created, manifest.created);
}

TEST(ReadManifest, NamesTheFolderOfADamagedOne) {
  const TempFolder folder;
  write_text_file(folder.path() / kManifestName, "{}");
  const std::string error = error_text<CheckpointError>([&] { read_manifest(folder.path()); });
  EXPECT_EQ(error.find("checkpoint " + folder.path().string() + " is damaged: "), 0u) << error;
  write_text_file(folder.path() / kManifestName, manifest_text(example()));
  EXPECT_EQ(read_manifest(folder.path()), example());
}

}  // namespace
}  // namespace penstock::checkpoint
