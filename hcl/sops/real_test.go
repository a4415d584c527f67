package sops_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/hcl/sops"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
)

var update = flag.Bool("update", false, "write the files of testdata again, with the real sops")

// The real sops and this package read what the other wrote. make sops-test installs sops.
func TestRealSops(t *testing.T) {
	command, err := exec.LookPath("sops")
	if err != nil {
		t.Skip("there is no sops: make sops-test installs it")
	}
	source := read(t, "source.yaml")
	dir := t.TempDir()
	run := func(t *testing.T, key string, args ...string) []byte {
		t.Helper()
		c := exec.Command(command, args...)
		variable := "SOPS_AGE_KEY_FILE="
		if strings.HasPrefix(key, "ssh_") {
			variable = "SOPS_AGE_SSH_PRIVATE_KEY_FILE="
		}
		at, err := filepath.Abs(filepath.Join("testdata", key))
		require.NoError(t, err)
		c.Dir, c.Env = dir, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), variable + at}
		out, err := c.Output()
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
			t.Fatalf("sops %s: %s", strings.Join(args, " "), exit.Stderr)
		}
		require.NoError(t, err)
		return out
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			public := func(name string) string { return strings.TrimSpace(string(read(t, name+".pub"))) }
			var rules string
			switch v.name {
			case "several":
				rules = "creation_rules:\n  - age: " + public("key.txt") + "," + public(v.key) + "\n"
			case "groups":
				rules = "creation_rules:\n  - shamir_threshold: 2\n    key_groups:\n      - age: [" + public("key.txt") + "]\n      - age: [" + public("hybrid.txt") + "]\n      - age: [" + public("other.txt") + "]\n"
			default:
				rules = "creation_rules:\n  - age: " + public(v.key) + "\n"
			}
			if v.rule != "" {
				rules += "    " + v.rule + "\n"
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".sops.yaml"), []byte(rules), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "x.yaml"), source, 0o600))
			data := run(t, v.key, "encrypt", "x.yaml")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "e.yaml"), data, 0o600))
			theirs := values(t, run(t, v.key, "decrypt", "e.yaml"))
			require.Equal(t, theirs, open(t, data, keys(t, v.key)))
			if *update {
				require.NoError(t, os.WriteFile(filepath.Join("testdata", v.name+".sops.yaml"), data, 0o644))
			}
		})
	}
	t.Run("what tests encrypt", func(t *testing.T) {
		secret, recipient, err := sopstest.NewKey()
		require.NoError(t, err)
		data, err := sopstest.Encrypt(string(source), sopstest.Options{Recipients: []string{recipient, strings.TrimSpace(string(read(t, "key.txt.pub")))}, Clear: "^ssh_keys$"})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ours.yaml"), data, 0o600))
		require.Equal(t, values(t, source), values(t, run(t, "key.txt", "decrypt", "ours.yaml")))
		k, found := sops.FindKeys(sops.Sources{Env: func(name string) string { return map[string]string{"SOPS_AGE_KEY": secret}[name] }})
		require.Empty(t, found)
		require.Equal(t, values(t, source), open(t, data, k))
	})
}

// TestRealSopsMutants: what of changed files this package opens, the real sops opens too, with the same values.
// HOMESTAK_SOPS_MUTANTS is the number of changed files, HOMESTAK_SOPS_SEED the first seed.
func TestRealSopsMutants(t *testing.T) {
	command, err := exec.LookPath("sops")
	if err != nil {
		t.Skip("there is no sops: make sops-test installs it")
	}
	count := number(t, "HOMESTAK_SOPS_MUTANTS", 2_000)
	first := number(t, "HOMESTAK_SOPS_SEED", 1)
	dir := t.TempDir()
	opened := 0
	var g errgroup.Group
	g.SetLimit(4)
	for seed := first; seed < first+count; seed++ {
		v := variants[seed%len(variants)]
		data := string(read(t, v.name+".sops.yaml"))
		text, name := mutant(rand.New(rand.NewPCG(uint64(seed), 0)), data) //nolint:gosec // a seed is not negative
		ours, err := tryOpen([]byte(text), keys(t, v.key))
		if err != nil || text == data {
			continue
		}
		opened++
		identity, err := filepath.Abs(filepath.Join("testdata", v.key))
		require.NoError(t, err)
		variable := "SOPS_AGE_KEY_FILE="
		if strings.HasPrefix(v.key, "ssh_") {
			variable = "SOPS_AGE_SSH_PRIVATE_KEY_FILE="
		}
		g.Go(func() error {
			file := filepath.Join(dir, fmt.Sprintf("%d.yaml", seed))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return err
			}
			c := exec.Command(command, "decrypt", file)
			c.Dir, c.Env = dir, []string{"HOME=" + dir, variable + identity}
			out, err := c.Output()
			if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
				t.Errorf("seed %d, %s, %s: sops refuses it: %s", seed, v.name, name, exit.Stderr)
				return nil
			}
			if theirs := fmt.Sprint(values(t, out)); err == nil && theirs != fmt.Sprint(ours) {
				t.Errorf("seed %d, %s, %s: sops reads %s, we read %s", seed, v.name, name, theirs, ours)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	t.Logf("%d changed files, %d of them opened", count, opened)
}

// number is a whole number in the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text, ok := os.LookupEnv(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
