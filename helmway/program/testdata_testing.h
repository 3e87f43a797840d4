#ifndef HELMWAY_PROGRAM_TESTDATA_TESTING_H_
#define HELMWAY_PROGRAM_TESTDATA_TESTING_H_

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace helmway::program {

// The contents of a file of testdata/. A test that uses it is built with HELMWAY_PROGRAM_TESTDATA.
inline std::string ReadTestdata(const std::string& name) {
  std::ifstream file(std::string(HELMWAY_PROGRAM_TESTDATA) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_TESTDATA_TESTING_H_
