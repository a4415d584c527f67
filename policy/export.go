package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// seal begins the last line of an exported file. It has the hash of everything before it, which shows that the file
// is unmodified.
const seal = "# exported by homestak-gitops policy export, sha256:"

// Export writes the shipped rules and their tests to a folder, which it creates if necessary, for
// editors and for the real `opa test`. A file there that is not an unchanged export is not
// overwritten: then nothing is written, and the error names all of them. In a site's folder policy/
// unchanged exports are ignored, as they are shipped anyway.
func Export(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the folder for policies: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the folder for policies: %w", err)
	}
	defer func() { _ = root.Close() }()
	files, _ := load(nil)
	var changed []error
	for _, f := range files {
		name := path.Base(f.name)
		old, err := root.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			changed = append(changed, fmt.Errorf("read %s: %w", name, err))
		case !exported(string(old)):
			changed = append(changed, fmt.Errorf("%s already exists, and is not an unchanged export: move it away, or export into another folder", path.Join(dir, name)))
		}
	}
	if len(changed) > 0 {
		return fmt.Errorf("export policies: nothing is written: %w", errors.Join(changed...))
	}
	for _, f := range files {
		if err := root.WriteFile(path.Base(f.name), []byte(sealed(f.text)), 0o644); err != nil {
			return fmt.Errorf("export policies: %w", err)
		}
	}
	return nil
}

// ExportSchemas writes the JSON Schemas of the two inputs to a folder of their own, which opa check --schema reads. It replaces
// them: they follow from the program.
func ExportSchemas(dir string, kinds model.Kinds) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the folder for schemas: %w", err)
	}
	s := shapesOf(kinds)
	for name, input := range map[string]*shape{"pass": s.pass, "auth": s.auth} {
		schema := input.schema()
		schema["$schema"] = "http://json-schema.org/draft-07/schema#"
		text, err := json.MarshalIndent(schema, "", "  ")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644)
		}
		if err != nil {
			return fmt.Errorf("export the schemas: %w", err)
		}
	}
	return nil
}

// schema is the JSON Schema of a shape. Plain values have no type in it: most may be null.
func (s *shape) schema() map[string]any {
	switch {
	case s == nil || s.fields != nil && len(s.fields) == 0:
		return map[string]any{}
	case s.list:
		return map[string]any{"type": "array", "items": s.each.schema()}
	case s.fields == nil:
		return map[string]any{"type": "object", "additionalProperties": s.each.schema()}
	}
	fields := map[string]any{}
	for name, field := range s.fields {
		fields[name] = field.schema()
	}
	return map[string]any{"type": "object", "properties": fields, "additionalProperties": false}
}

func sealed(text string) string { return text + seal + hashOf(text) + "\n" }

// exported reports whether a file is as it was exported, by this or an older version.
func exported(text string) bool {
	i := strings.LastIndex(text, seal)
	return i >= 0 && text[i:] == seal+hashOf(text[:i])+"\n"
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
