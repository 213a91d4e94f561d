// What is trained on, or held out: numbered samples, each of the same named tensors.
//
// A dataset gives one field of one sample at a time, so a rank reads only what it needs: its rows
// of the batch, and the fields that its part of the model takes. docs/own_datasets.md shows how to
// write one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/data/field.h"

namespace penstock::data {

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t samples() const = 0;

  // The same for every sample.
  virtual const std::vector<Field>& fields() const = 0;

  // Puts field `field` (an index into fields()) of sample `sample` into `into`, which has the
  // field's bytes. Safe from several threads at once. The same sample always gives the same bytes.
  // Returns how many bytes of files that took; 0 where it took none.
  virtual int64_t read(int64_t sample, size_t field, std::span<std::byte> into) const = 0;

  // Looks through part `part` of `parts` of the data, if that can be done within seconds, and throws
  // what is wrong with it. Each rank of a run looks through its own part before the first step. Returns
  // how many bytes of files that took.
  virtual int64_t check(int64_t part, int64_t parts) const;

  // Tells this data from other data, cheaply: a run that resumes on other data warns.
  virtual std::string fingerprint() const = 0;

  // For people: "338,027 tokens"; "1,200 samples" unless a dataset says otherwise.
  virtual std::string size_text() const;

  // The index of a field, or -1 when there is none of this name.
  int find(const std::string& name) const;

 protected:
  // What read() may rely on: the sample and the field exist, `into` has the field's bytes.
  void check_read(int64_t sample, size_t field, std::span<const std::byte> into) const;
};

using DatasetPtr = std::shared_ptr<const Dataset>;

struct Split {
  DatasetPtr train;
  DatasetPtr validation;  // nothing when nothing is held out
};

// The indices of the fields with these names, in this order, each once; all fields for no names.
// Throws ConfigError when the data lacks one, or when its samples or fields are no good.
std::vector<size_t> chosen_fields(const Dataset& dataset, const std::vector<std::string>& names);

}  // namespace penstock::data
