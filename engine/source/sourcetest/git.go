package sourcetest

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Git is git in a folder, without the settings, hooks and proxies of the user who runs the test. The author is Ada, a
// new repository begins with the branch main, and every folder is trusted.
func Git(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir, cmd.Env = dir, GitEnv()
	return cmd
}

// GitEnv is the environment of Git, for a program that runs git.
func GitEnv() []string {
	of := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "GIT_") || strings.HasPrefix(name, "LC_") || strings.HasSuffix(strings.ToLower(name), "_proxy") ||
			slices.Contains([]string{"LANGUAGE", "SSH_AUTH_SOCK", "XDG_CONFIG_HOME"}, name)
	})
	return append(of, "GIT_CONFIG_NOSYSTEM=1", "HOME="+os.DevNull, "GIT_TERMINAL_PROMPT=0", "GIT_ADVICE=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org")
}
