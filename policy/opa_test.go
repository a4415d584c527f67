package policy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/policy"
)

// The real opa must agree with us on every test: on the shipped rules alone, on the
// example site with them, and on tests that end in every way there is. Run by
// make policy-test, which brings the program.
func TestOPAAgrees(t *testing.T) {
	opa, err := exec.LookPath("opa")
	if err != nil {
		t.Skip("needs the program opa; make policy-test brings it")
	}
	for _, c := range []struct {
		name   string
		copy   func(t *testing.T, site string)
		passes bool
	}{
		{"shipped", func(*testing.T, string) {}, true},
		{"example site", func(t *testing.T, site string) {
			require.NoError(t, os.CopyFS(filepath.Join(site, "policy"), os.DirFS("../examples/site/policy")))
		}, true},
		{"every end", func(t *testing.T, site string) {
			require.NoError(t, os.Mkdir(filepath.Join(site, "policy"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(site, "policy", "x_test.rego"), []byte(siteTests), 0o644))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			site, shipped := t.TempDir(), filepath.Join(t.TempDir(), "shipped")
			require.NoError(t, policy.Export(shipped))
			c.copy(t, site)
			folders := []string{shipped}
			if own := filepath.Join(site, "policy"); exists(own) {
				folders = append(folders, own)
			}
			theirs, counted := opaTest(t, opa, folders)

			s, found := policy.Compile(t.Context(), policy.Options{Site: os.DirFS(site)})
			require.False(t, found.HasErrors(), lines(found))
			tally, err := s.Test(t.Context(), &bytes.Buffer{}, policy.TestOptions{})
			require.NoError(t, err)
			ours := map[string]string{}
			for _, r := range tally.Tests {
				ours[r.Name] = r.Outcome
			}
			require.Equal(t, theirs, ours)
			require.Equal(t, c.passes, tally.OK())
			tally.Tests = nil
			require.Equal(t, counted, tally)
			t.Logf("%d tests, cases counted: ours and opa's: %d passed, %d failed, %d errors, %d skipped",
				len(ours), tally.Passed, tally.Failed, tally.Errors, tally.Skipped)
		})
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// opaTest runs opa test over folders. It gives how each test went, and their count.
func opaTest(t *testing.T, opa string, folders []string) (map[string]string, policy.Tally) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), opa, append([]string{"test", "--format", "json"}, folders...)...)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		err = nil // some tests failed, which its answer tells
	}
	require.NoError(t, err)
	var results []struct {
		Package    string         `json:"package"`
		Name       string         `json:"name"`
		Fail, Skip bool           `json:",omitempty"`
		Error      any            `json:"error"`
		SubResults map[string]any `json:"sub_results"`
	}
	require.NoError(t, json.Unmarshal(b, &results))
	out, tally := map[string]string{}, policy.Tally{}
	for _, r := range results {
		name := fmt.Sprintf("%s.%s", r.Package, r.Name)
		require.False(t, slices.Contains([]string{"passed", "failed"}, out[name]), "%s is there twice", name)
		switch {
		case r.Skip:
			out[name] = "skipped"
			tally.Skipped++
		case r.Error != nil:
			out[name] = "error"
			tally.Errors++
		case r.Fail:
			out[name] = "failed"
		default:
			out[name] = "passed"
		}
		for _, sub := range r.SubResults {
			if fail, _ := sub.(map[string]any)["fail"].(bool); fail {
				tally.Failed++
			} else {
				tally.Passed++
			}
		}
		switch {
		case r.Skip || r.Error != nil || len(r.SubResults) > 0:
		case r.Fail:
			tally.Failed++
		default:
			tally.Passed++
		}
	}
	return out, tally
}
