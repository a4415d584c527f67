// Package released provides the released binary, and a small site for it, to tests of the whole program.
package released

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// variable names a binary to test instead of building one: make test builds it once for all
// packages. The test cache of go notices when that file changes, since Path reads it.
const variable = "HOMESTAK_PROGRAM"

// Path returns the path of the binary. It builds one in dir unless variable names one.
func Path(ctx context.Context, dir string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("find the program of %s: %w", variable, err)
		}
		return path, nil
	}
	path := filepath.Join(dir, "homestak-gitops")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "github.com/homestak/homestak-gitops/cmd/homestak-gitops")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, text)
	}
	return path, nil
}
