package site

import (
	"errors"
	"io/fs"
	"os"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source/checkout"
	"github.com/homestak/homestak-gitops/hcl"
)

// SecretsName is the file of secrets in a site folder. Git must not track it.
const SecretsName = "secrets.yaml"

// secretsAt is the beginning of that file.
func secretsAt() diag.Range {
	start := diag.Pos{Line: 1, Column: 1}
	return diag.Range{File: SecretsName, Start: start, End: start}
}

// trackedSecrets is the finding about secrets in the repository.
func trackedSecrets() diag.Finding {
	return diag.Errorf(secretsAt(), SecretsName+" is tracked by git",
		"Everyone who can read the repository, now or later, has these secrets.\n"+
			"Take it out:   git rm --cached %[1]s && echo %[1]s >> .gitignore && git commit\n"+
			"Then change every secret in it: the old values stay in the history.", SecretsName)
}

// readSecrets reads a file of secrets outside of the site. The hint, which may be "",
// says where its name is from.
func readSecrets(name, hint string) (*model.Secrets, diag.List) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, diag.List{diag.Errorf(diag.Range{}, "secrets cannot be read", "%v%s", err, hint)}
	}
	info, err := os.Stat(name)
	return parseSecrets(name, data, info, err)
}

func parseSecrets(name string, data []byte, info fs.FileInfo, err error) (*model.Secrets, diag.List) {
	secrets, found := hcl.ParseSecrets(name, data)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		found = append(found, diag.Warnf(diag.Range{}, name+" can be read by others on this machine", "chmod 600 %s", name))
	}
	return secrets, found
}

// folderSecrets reads the secrets of a folder: those of the named file, else of
// secrets.yaml in it, if git does not track that. Having none is fine: then the site is
// checked without their names. A tracked secrets.yaml is an error also where it is not read.
func folderSecrets(root *os.Root, tree *checkout.Worktree, name string) (*model.Secrets, diag.List) {
	tracked, unknown := false, errors.New("the git checkout around the site cannot be read")
	if tree != nil {
		tracked, unknown = tree.Tracks(SecretsName)
	}
	var found diag.List
	if tracked {
		found = diag.List{trackedSecrets()}
	}
	if name != "" {
		secrets, l := readSecrets(name, "")
		return secrets, append(found, l...)
	}
	data, err := root.ReadFile(SecretsName)
	switch {
	case errors.Is(err, fs.ErrNotExist), tracked:
		return nil, found
	case err != nil:
		return nil, diag.List{diag.Errorf(secretsAt(), "secrets cannot be read", "%v. A file elsewhere can be named with --secrets.", err)}
	case unknown != nil:
		return nil, diag.List{diag.Errorf(secretsAt(), "whether git tracks "+SecretsName+" is not known",
			"%v. Fix the checkout, or name a file of secrets outside of it with --secrets.", unknown)}
	}
	info, err := root.Stat(SecretsName)
	return parseSecrets(SecretsName, data, info, err)
}
