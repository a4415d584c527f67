//go:build deps

package deps

import (
	_ "github.com/go-git/go-git/v5"
	_ "github.com/gofrs/flock"
	_ "github.com/hashicorp/hcl/v2/hclsyntax"
	_ "github.com/hashicorp/hcl/v2/hclwrite"
	_ "github.com/hashicorp/hcl/v2/ext/tryfunc"
	_ "github.com/luthermonson/go-proxmox"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/cobra/doc"
	_ "github.com/stretchr/testify/require"
	_ "github.com/zclconf/go-cty/cty/gocty"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/term"
	_ "golang.org/x/sync/errgroup"
	_ "pgregory.net/rapid"
	_ "github.com/google/uuid"
	_ "github.com/agext/levenshtein"
)
