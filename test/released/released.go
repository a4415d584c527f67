// Package released gives tests of the whole program the binary as it is released.
package released

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Variable names a binary that is tested instead of one that is built for the test: make
// test builds one for all packages. go test reads a file that a test has looked at again
// before it takes an old result for it, so a binary that changed is tested.
const Variable = "HOMESTAK_PROGRAM"

// Path is where the binary is. Unless there is one it is built into the folder.
func Path(dir string) (string, error) {
	if path := os.Getenv(Variable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("read what %s names: %w", Variable, err)
		}
		return path, nil
	}
	path := filepath.Join(dir, "homestak-gitops")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "github.com/homestak/homestak-gitops/cmd/homestak-gitops")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, text)
	}
	return path, nil
}
