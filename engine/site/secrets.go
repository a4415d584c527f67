package site

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/hcl/sops"
)

const (
	// SecretsName is the file of secrets in a site folder. Git must not track it.
	SecretsName = "secrets.yaml"
	// encryptedName is the file of secrets that SOPS encrypted, which git may track.
	encryptedName = "secrets.sops.yaml"
)

// Keys say where the age identities are that decrypt secrets.
type Keys struct {
	Env  func(string) string // the environment; nil: no identity of the user is read
	File string              // a further file; "" for none
}

func (k Keys) sources() sops.Sources { return sops.Sources{Env: k.Env, File: k.File} }

// find reads the identities.
func (k Keys) find() (*sops.Keys, diag.List) { return k.sources().FindKeys() }

// Files are the files that may have identities, whether they exist or not.
func (k Keys) Files() []string { return k.sources().Files() }

// startOf is the beginning of a file.
func startOf(name string) diag.Range {
	start := diag.Pos{Line: 1, Column: 1}
	return diag.Range{File: name, Start: start, End: start}
}

// trackedSecrets is the finding about secrets in the repository. Data is the file, as far as it
// is known.
func trackedSecrets(data []byte) diag.Finding {
	summary := SecretsName + " is tracked by git"
	if hcl.IsEncrypted(data) {
		return diag.Errorf(startOf(SecretsName), summary, "It is encrypted, so give it the name of the file that git may track: git mv %s %s && git commit", SecretsName, encryptedName)
	}
	return diag.Errorf(startOf(SecretsName), summary,
		"Everyone who can read the repository, now or later, has these secrets.\n"+
			"Take it out:   git rm --cached %[1]s && echo %[1]s >> .gitignore && git commit\n"+
			"Then change every secret in it: the old values stay in the history.\n"+
			"Git may track %[2]s, which sops encrypts: sops encrypt --age RECIPIENT %[1]s > %[2]s", SecretsName, encryptedName)
}

// namedSecrets reads a file of secrets outside of the site, which may be one that SOPS encrypted.
// The hint, which may be "", says where its name is from.
func namedSecrets(name, hint string, keys Keys) (*model.Secrets, diag.List) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, diag.List{diag.Errorf(diag.Range{}, "secrets cannot be read", "%v%s", err, hint)}
	}
	info, err := os.Stat(name)
	return parseSecrets(name, data, info, err, keys)
}

// parseSecrets reads a file of secrets, whose secrecy is its own affair where it is encrypted.
func parseSecrets(name string, data []byte, info fs.FileInfo, err error, keys Keys) (*model.Secrets, diag.List) {
	if hcl.IsEncrypted(data) {
		return decrypt(name, data, keys)
	}
	secrets, found := hcl.ParseSecrets(name, data, nil)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		found = append(found, diag.Warnf(diag.Range{}, name+" can be read by others on this machine", "chmod 600 %s", name))
	}
	return secrets, found
}

// decrypt reads a file of secrets that SOPS encrypted.
func decrypt(name string, data []byte, keys Keys) (*model.Secrets, diag.List) {
	all, found := keys.find()
	secrets, l := hcl.ParseSecrets(name, data, all)
	return secrets, append(found, l...)
}

// encryptedSecrets reads secrets.sops.yaml of a tree. Without decryption it only reads the names of the secrets,
// and reports what is wrong with the unencrypted parts of the file. ok is false if the file does not exist.
func encryptedSecrets(tree fs.FS, keys *Keys) (secrets *model.Secrets, found diag.List, ok bool) {
	data, err := readRegular(tree, encryptedName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, false
	case err != nil:
		return nil, diag.List{diag.Errorf(startOf(encryptedName), "secrets cannot be read", "%v", err)}, true
	case !hcl.IsEncrypted(data):
		return nil, diag.List{notEncrypted(data)}, true
	case keys == nil:
		_, found = hcl.ParseSecrets(encryptedName, data, nil)
		return nil, found, true
	}
	secrets, found = decrypt(encryptedName, data, *keys)
	return secrets, found, true
}

// notEncrypted is the finding about a file that only has the name of one that sops encrypted.
func notEncrypted(data []byte) diag.Finding {
	_, found := hcl.ParseSecrets(encryptedName, data, nil)
	for _, f := range found {
		if f.Severity == diag.Error { // what it is instead: a half of a merge, for one
			return diag.Errorf(f.At, encryptedName+" is not a file that sops encrypted", "%s. %s", f.Summary, f.Detail)
		}
	}
	return diag.Errorf(startOf(encryptedName), encryptedName+" is not encrypted",
		"It has no metadata of SOPS. Encrypt it: sops encrypt -i --age RECIPIENT %s\n"+
			"If it was pushed, everyone who can read the repository has these secrets: change every secret in it, since the old values stay in the history.", encryptedName)
}

// maxSecrets bounds a file of secrets, in bytes; what is larger is reported by its parser.
const maxSecrets = 2 << 20

// readRegular reads a file of a tree that is neither a link nor anything else.
func readRegular(tree fs.FS, name string) ([]byte, error) {
	info, err := fs.Lstat(tree, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file, and links are not followed", name)
	}
	f, err := tree.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxSecrets))
}

// folderSecrets reads the secrets of a folder: those of the named file, else of
// secrets.sops.yaml in it, else of secrets.yaml if git does not track that. Having none is fine:
// then the site is checked without their names. A tracked secrets.yaml is an error also where it
// is not read, and so is what is in the clear in secrets.sops.yaml.
func folderSecrets(root *os.Root, tree *source.Worktree, name string, keys Keys) (*model.Secrets, diag.List) {
	tracked, unknown := false, errors.New("the git checkout around the site cannot be read")
	if tree != nil {
		tracked, unknown = tree.Tracks(SecretsName)
	}
	var found diag.List
	if tracked {
		data, _ := readRegular(root.FS(), SecretsName) // for the advice only
		found = diag.List{trackedSecrets(data)}
	}
	if name != "" {
		_, inClear, _ := encryptedSecrets(root.FS(), nil)
		secrets, l := namedSecrets(name, "", keys)
		return secrets, append(append(found, inClear...), l...)
	}
	if secrets, l, ok := encryptedSecrets(root.FS(), &keys); ok {
		if _, err := root.Stat(SecretsName); err == nil && !tracked {
			found = append(found, diag.Warnf(startOf(SecretsName), SecretsName+" is not read", "The secrets are in %s, which comes first. Remove %s, or name it: --secrets %[2]s", encryptedName, SecretsName))
		}
		return secrets, append(found, l...)
	}
	data, err := root.ReadFile(SecretsName)
	switch {
	case errors.Is(err, fs.ErrNotExist), tracked:
		return nil, found
	case err != nil:
		return nil, diag.List{diag.Errorf(startOf(SecretsName), "secrets cannot be read", "%v. A file elsewhere can be named with --secrets.", err)}
	case unknown != nil:
		return nil, diag.List{diag.Errorf(startOf(SecretsName), "whether git tracks "+SecretsName+" is not known",
			"%v. Fix the checkout, or name a file of secrets outside of it with --secrets.", unknown)}
	}
	info, err := root.Stat(SecretsName)
	return parseSecrets(SecretsName, data, info, err, keys)
}

// commitSecrets reads the secrets for a commit: those of the named file, else those that are given, else
// those of secrets.sops.yaml in its tree.
func commitSecrets(tree fs.FS, name string, given *model.Secrets, keys Keys) (*model.Secrets, diag.List) {
	var found diag.List
	if data, err := readRegular(tree, SecretsName); !errors.Is(err, fs.ErrNotExist) {
		found = append(found, trackedSecrets(data))
	}
	if name == "" && given == nil {
		secrets, l, _ := encryptedSecrets(tree, &keys)
		return secrets, append(found, l...)
	}
	_, inClear, _ := encryptedSecrets(tree, nil)
	if name == "" {
		return given, append(found, inClear...)
	}
	secrets, l := namedSecrets(name, ". The file is named by secrets_file in agent.hcl, or by --secrets.", keys)
	return secrets, append(append(found, inClear...), l...)
}
