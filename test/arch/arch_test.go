// Package arch_test checks the laws of the tree: which package may import which, which library belongs to which package,
// how large packages, types and the whole may be, and which texts the program prints.
//
// The files are read with go/parser. Asking the go command instead would give a
// result that the test cache takes for unchanged when another package changes; the
// files that a test opens are inputs of the test cache.
package arch_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// source is one Go file.
type source struct {
	path  string // from the root of the module
	test  bool
	lines int
	ast   *ast.File
}

func (f source) pkg() string { return path.Dir(f.path) }

// forTests reports whether the file belongs to the tests of the whole program.
func (f source) forTests() bool { return strings.HasPrefix(f.path, "test/") }

func (f source) imports() []string {
	out := make([]string, 0, len(f.ast.Imports))
	for _, i := range f.ast.Imports {
		out = append(out, strings.Trim(i.Path.Value, "`\""))
	}
	return out
}

// read parses every Go file of a module, whatever its build tags.
func read(t *testing.T, fsys fs.FS) []source {
	t.Helper()
	var tree []source
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "dist"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(base) != ".go":
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		lines := bytes.Count(text, []byte("\n"))
		if strings.HasSuffix(base, "_templ.go") {
			lines = 0 // it is compiled from markup, and not read
		}
		tree = append(tree, source{name, strings.HasSuffix(base, "_test.go"), lines, file})
		return nil
	})
	require.NoError(t, err)
	return tree
}

func TestTheTreeKeepsItsLaws(t *testing.T) {
	tree := read(t, os.DirFS("../.."))
	require.NotEmpty(t, tree)
	for _, l := range laws {
		t.Run(l.name, func(t *testing.T) {
			require.Empty(t, strings.Join(l.check(tree), "\n"))
		})
	}
}

// A law that finds nothing may be a law that cannot find anything.
func TestPlantedViolationsAreFound(t *testing.T) {
	for _, c := range []struct {
		name  string
		check func([]source) []string
		files map[string]string
		want  string
	}{
		{
			"import upwards", importLaw,
			map[string]string{"engine/plan/x.go": `package plan; import _ "` + module + `/hcl"`},
			"engine/plan/x.go: engine/plan must not import hcl",
		},
		{
			"import that only tests may have", importLaw,
			map[string]string{
				"drivers/proxmox/x_test.go": `package proxmox; import _ "` + module + `/sim/pve"`,
				"drivers/proxmox/x.go":      `package proxmox; import _ "` + module + `/sim/pve"`,
			},
			"drivers/proxmox/x.go: drivers/proxmox must not import sim/pve",
		},
		{
			"the API table above the driver", importLaw,
			map[string]string{"cmd/homestak-gitops/x.go": `package main; import _ "` + module + `/drivers/proxmox/pveapi"`},
			"cmd/homestak-gitops/x.go: cmd/homestak-gitops must not import drivers/proxmox/pveapi",
		},
		{
			"new package", importLaw,
			map[string]string{"engine/magic/x.go": `package magic`},
			"engine/magic/x.go: package engine/magic is not in the table of test/arch: decide what it may import",
		},
		{
			"product on top of tests", importLaw,
			map[string]string{
				"engine/x_test.go": `package engine; import _ "` + module + `/test/load"`,
				"test/load/x.go":   `package load; import _ "` + module + `/hcl"`,
			},
			"engine/x_test.go: engine must not import test/load",
		},
		{
			"stale table", tableLaw,
			map[string]string{"hcl/x.go": `package hcl`},
			"test/arch: the row of engine/diag is of a package that does not exist",
		},
		{
			"stale grant", tableLaw,
			map[string]string{"hcl/x.go": "package hcl", "hcl/x_test.go": `package hcl; import _ "` + module + `/hcl/lang"`},
			"test/arch: hcl may import hcl/lang, and does not",
		},
		{
			"stale grant of tests", tableLaw,
			map[string]string{"hcl/x.go": `package hcl; import _ "` + module + `/hcl/sops/sopstest"`},
			"test/arch: the row of hcl has hcl/sops/sopstest for tests, which do not need it",
		},
		{
			"library of another", libraryLaw,
			map[string]string{"engine/x.go": `package engine; import _ "github.com/hashicorp/hcl/v2/hclsyntax"`},
			"engine/x.go: engine must not use github.com/hashicorp/hcl/v2/hclsyntax (the language is read in one place)",
		},
		{
			"library for tests", libraryLaw,
			map[string]string{"engine/x_test.go": `package engine; import _ "pgregory.net/rapid"`, "engine/x.go": `package engine; import _ "pgregory.net/rapid"`},
			"engine/x.go: engine must not use pgregory.net/rapid (for tests)",
		},
		{
			"the wrong part of testify", libraryLaw,
			map[string]string{"engine/x_test.go": `package engine; import _ "github.com/stretchr/testify/assert"`},
			"engine/x_test.go: github.com/stretchr/testify/assert is not in the table of libraries of test/arch",
		},
		{
			"large package", sizeLaw,
			map[string]string{
				"hcl/x.go":      "package hcl\n" + strings.Repeat("\n", 2500),
				"hcl/y.go":      "package hcl\n" + strings.Repeat("\n", 2500),
				"hcl/z_test.go": "package hcl\n" + strings.Repeat("\n", 9000),
			},
			"hcl: 5002 lines, 5000 are enough: split it by what it does",
		},
		{
			"small package", sizeLaw,
			map[string]string{"engine/tiny/x.go": "package tiny\n", "engine/tiny/x_test.go": "package tiny\n"},
			"engine/tiny: 1 lines, with tests: true: a package has at least 400 lines and a test; put it into another one, or give a reason in smallPackages",
		},
		{
			"package without a test", sizeLaw,
			map[string]string{"engine/untested/x.go": "package untested\n" + strings.Repeat("\n", 500)},
			"engine/untested: 501 lines, with tests: false: a package has at least 400 lines and a test; put it into another one, or give a reason in smallPackages",
		},
		{
			"row of a package that grew", sizeLaw,
			map[string]string{"drivers/x.go": "package drivers\n" + strings.Repeat("\n", 500), "drivers/x_test.go": "package drivers\n"},
			"test/arch: the row of drivers in smallPackages is not needed any more",
		},
		{
			"type with many methods", sizeLaw,
			map[string]string{
				"hcl/x.go":      "package hcl\ntype T[P any] struct{}\n" + strings.Repeat("func (t *T[P]) m() {}\n", 31) + strings.Repeat("\n", 400),
				"hcl/x_test.go": "package hcl\n",
			},
			"hcl.T: 31 methods, 30 are enough: give its parts types of their own",
		},
		{
			"struct of callbacks", funcsLaw,
			map[string]string{
				"engine/x.go": "package engine\ntype T struct { A, B func(); C, D func(int) error; E func() }\ntype U struct { A, B, C, D func(); E int }\n",
			},
			"engine/x.go: T has 5 functions, 4 are enough: write an interface",
		},
		{
			"exported without a user", exportLaw, // the type is needed to write the other one, and the constant belongs to a set
			map[string]string{
				"engine/diag/x.go": "package diag\ntype A struct{ F B }\ntype B int\nconst (\n\tB1 B = iota\n\tB2\n)\nfunc Alone() {}\n",
				"engine/x.go":      "package engine; import \"" + module + "/engine/diag\"\nvar _ diag.A\n",
			},
			"engine/diag/x.go: no other package uses Alone: begin it with a small letter",
		},
		{
			"exported for its own tests", exportLaw,
			map[string]string{
				"engine/diag/x.go":      "package diag\nfunc A() {}\n",
				"engine/diag/x_test.go": "package diag_test; import \"" + module + "/engine/diag\"\nvar _ = diag.A\n",
			},
			"engine/diag/x.go: no other package uses A: begin it with a small letter",
		},
		{
			"second home of a rule", homeLaw,
			map[string]string{
				"engine/durable/x.go": "package durable\nvar _ = syscall.Flock\n",
				"engine/control/x.go": "package control\nvar _ = syscall.Flock\n",
			},
			`engine/control/x.go: has "syscall.Flock": how a file is locked is decided in ` + strings.Join(homes[1].in, ", "),
		},
		{
			"more lines than the budget", budgetLaw,
			map[string]string{"sim/x.go": "package sim\n" + strings.Repeat("\n", budget["simulator"])},
			fmt.Sprintf("test/arch: the simulator has %d lines, its budget is %d: remove some, or raise the budget with a decision", budget["simulator"]+1, budget["simulator"]),
		},
		{
			"phrase in a message", phraseLaw,
			map[string]string{
				"engine/diag/x.go": "package diag\nvar s = `%s: that is no number`\nvar t = `no guest is left`\n",
			},
			`engine/diag/x.go: says "that is no number": is not a …`,
		},
		{
			"second cleaner of text", cleanerLaw,
			map[string]string{"engine/x.go": "package engine\nvar _ = unicode.IsPrint\n", "engine/diag/x.go": "package diag\nvar _ = unicode.IsPrint\n"},
			"engine/x.go: cleans text by unicode.IsPrint: use diag.Clean, diag.Line or diag.Escape",
		},
		{
			"library beside its owner's folder", libraryLaw,
			map[string]string{
				"hcl/lang/x.go": `package lang; import _ "github.com/hashicorp/hcl/v2"`,
				"hclx/x.go":     `package hclx; import _ "github.com/hashicorp/hcl/v2"`,
			},
			"hclx/x.go: hclx must not use github.com/hashicorp/hcl/v2 (the language is read in one place)",
		},
		{
			"simulator in the agent's code", simulatorLaw,
			map[string]string{
				"cmd/homestak-gitops/agent.go":     `package main; import _ "github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"`,
				"cmd/homestak-gitops/sim.go":       `package main; import _ "github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"`,
				"cmd/homestak-gitops/sim/world.go": `package sim; import _ "github.com/homestak/homestak-gitops/sim/pve"`,
				"sim/guests.go":                    `package sim; import _ "github.com/homestak/homestak-gitops/sim/pve"`,
				"engine/service/x_test.go":         `package service; import _ "github.com/homestak/homestak-gitops/sim/pve"`,
				"drivers/drivertest/x.go":          `package drivertest; import _ "github.com/homestak/homestak-gitops/sim/pve"`,
			},
			"cmd/homestak-gitops/agent.go: imports the simulator by cmd/homestak-gitops/sim: let it get a transport",
		},
		{
			"simulator in a verb that simulates", simulatorLaw,
			map[string]string{"cmd/homestak-gitops/sim.go": `package main; import _ "github.com/homestak/homestak-gitops/sim"`},
			"cmd/homestak-gitops/sim.go: imports the simulator by sim: let it get a transport",
		},
		{
			"init", initLaw,
			map[string]string{"hcl/x.go": "package hcl\nfunc init() {}"},
			"hcl/x.go: func init: what is needed is made where it is used",
		},
		{
			"name of nothing", nameLaw,
			map[string]string{"engine/util/x.go": "package util"},
			`engine/util/x.go: "util" says nothing of what the package holds`,
		},
		{
			"kind outside of the table", kindLaw, kindFiles("&poolKind"),
			"drivers/proxmox/vm.go: vmKind is not in the table of kinds.go",
		},
		{
			"kind of a package of its own", kindLaw,
			map[string]string{
				"drivers/proxmox/kinds.go":             "package proxmox\nfunc table() []kind.Kind { return []kind.Kind{&objects.Pool} }",
				"drivers/proxmox/objects/pool.go":      "package objects\nvar Pool = kind.Of[pool]{}",
				"drivers/proxmox/objects/pool_test.go": "package objects",
				"drivers/proxmox/objects/mesh.go":      "package objects\nvar Mesh = kind.Of[mesh]{}",
				"drivers/proxmox/objects/mesh_test.go": "package objects",
			},
			"drivers/proxmox/objects/mesh.go: Mesh is not in the table of kinds.go",
		},
		{
			"kind without a test", kindLaw, kindFiles("&poolKind, &vmKind"),
			"drivers/proxmox/pool.go: poolKind has no test of its own: pool_test.go is missing",
		},
		{
			"two kinds in one file", kindLaw,
			map[string]string{
				"drivers/proxmox/kinds.go":   "package proxmox\nfunc table() []kind.Kind { return []kind.Kind{&vmKind, &ctKind} }",
				"drivers/proxmox/vm.go":      "package proxmox\nvar vmKind = kind.Of[VM]{}\nvar ctKind = kind.Of[CT]{}",
				"drivers/proxmox/vm_test.go": "package proxmox",
			},
			"drivers/proxmox/vm.go: holds the kinds vmKind, ctKind: a kind is one file",
		},
		{
			"wait by the wall clock", sleepLaw,
			map[string]string{
				"hcl/x_test.go":         "package hcl\nfunc f() { time.Sleep(1) }",
				"engine/plan/x_test.go": "package plan; import _ \"testing/synctest\"",
				"engine/plan/y_test.go": "package plan\nfunc f() { time.Sleep(1) }",
			},
			"hcl/x_test.go: time.Sleep waits by the wall clock: wait for a condition, or test in a bubble of testing/synctest",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			planted := fstest.MapFS{}
			for name, text := range c.files {
				planted[name] = &fstest.MapFile{Data: []byte(text)}
			}
			found := c.check(read(t, planted))
			require.Contains(t, found, c.want)
			if !strings.HasPrefix(c.name, "stale") { // the table has rows of many packages
				require.Len(t, found, 1, "the law must find this and nothing else")
			}
		})
	}
}

// kindFiles is a driver with two kinds, of which the table lists some and vm has a test.
func kindFiles(table string) map[string]string {
	files := map[string]string{
		"drivers/proxmox/kinds.go":   "package proxmox\nfunc table() []kind.Kind { return []kind.Kind{" + table + "} }",
		"drivers/proxmox/vm.go":      "package proxmox\nvar vmKind = kind.Of[VM]{}",
		"drivers/proxmox/vm_test.go": "package proxmox",
		"drivers/proxmox/pool.go":    "package proxmox\nvar poolKind = kind.Of[Pool]{}",
	}
	if !strings.Contains(table, "vmKind") {
		files["drivers/proxmox/pool_test.go"] = "package proxmox"
	}
	return files
}

// cleanerLaw lists cleaners of text beside diag.Clean. What decides whether a character is fit to be shown is in
// one place, since one that is forgotten anywhere else is a hole there.
func cleanerLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		if f.test || strings.HasPrefix(f.path, "engine/diag/") || !strings.HasPrefix(f.path, "engine/") && !strings.HasPrefix(f.path, "specserve/") &&
			!strings.HasPrefix(f.path, "policy/") && !strings.HasPrefix(f.path, "cmd/") && !strings.HasPrefix(f.path, "hcl/") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := s.X.(*ast.Ident)
			if of != nil && (of.Name == "unicode" || of.Name == "strconv") && (s.Sel.Name == "IsPrint" || s.Sel.Name == "IsControl" || s.Sel.Name == "Cc" || s.Sel.Name == "IsGraphic") {
				out = append(out, f.path+": cleans text by "+of.Name+"."+s.Sel.Name+": use diag.Clean, diag.Line or diag.Escape")
			}
			return true
		})
	}
	return out
}

func TestS7OneCleaner(t *testing.T) {
	require.Empty(t, strings.Join(cleanerLaw(read(t, os.DirFS("../.."))), "\n"))
}

// pageRows returns the packages in the table of docs/architecture.md, of which a row has one or more.
func pageRows(page string) (rows []string) {
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 2 {
			continue
		}
		for pkg := range strings.SplitSeq(cells[0], ",") {
			if pkg = strings.TrimSpace(pkg); strings.HasPrefix(pkg, "`") && !strings.Contains(pkg, " ") {
				rows = append(rows, strings.Trim(pkg, "`"))
			}
		}
	}
	return rows
}

// pageLaw lists how the page differs from the table.
func pageLaw(table []layer, rows []string) []string {
	var out []string
	for _, l := range table {
		if !slices.ContainsFunc(rows, func(row string) bool { return covers(row, l.pkg) }) {
			out = append(out, fmt.Sprintf("docs/architecture.md: the row of %s is missing", l.pkg))
		}
	}
	for _, row := range rows {
		if !slices.ContainsFunc(table, func(l layer) bool { return covers(row, l.pkg) }) {
			out = append(out, fmt.Sprintf("docs/architecture.md: package %s does not exist", row))
		}
	}
	slices.Sort(out)
	return out
}

// covers reports whether a row of the page is about a package. One that ends in /... is about all packages below its folder.
func covers(row, pkg string) bool {
	folder, below := strings.CutSuffix(row, "/...")
	return row == pkg || below && strings.HasPrefix(pkg, folder+"/")
}

func TestThePageHasAllPackages(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	require.Empty(t, strings.Join(pageLaw(layers, pageRows(string(page))), "\n"))
}

func TestDifferencesOfThePageAreFound(t *testing.T) {
	require.Equal(t, []string{
		"docs/architecture.md: package e/... does not exist",
		"docs/architecture.md: package gone does not exist",
		"docs/architecture.md: the row of b is missing",
		"docs/architecture.md: the row of d is missing",
	}, pageLaw([]layer{{pkg: "a"}, {pkg: "b"}, {pkg: "c"}, {pkg: "d"}, {pkg: "d/x"}}, pageRows("| `a`, `c` | x |\n| `gone` | x |\n| `d/...`, `e/...` | x |\n")))
}
