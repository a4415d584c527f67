package arch_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
)

// The sizes that a reader can keep in mind.
const (
	mostLines   = 5000 // of a package, without its tests
	leastLines  = 400  // as well: a smaller package is a door too many
	mostMethods = 30   // of a type
	mostFuncs   = 4    // fields of a struct that are functions: more of them are an interface
)

// sizes counts the lines of every package, and the methods of every type as package.type.
func sizes(tree []source) (lines, methods map[string]int) {
	lines, methods = map[string]int{}, map[string]int{}
	for _, f := range tree {
		if f.test || f.forTests() {
			continue
		}
		lines[f.pkg()] += f.lines
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[f.pkg()+"."+receiver(fn)]++
			}
		}
	}
	return lines, methods
}

// receiver is the name of the type of a method.
func receiver(fn *ast.FuncDecl) string {
	name := ""
	ast.Inspect(fn.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name // of T[P] the first one is T
		}
		return true
	})
	return name
}

// smallPackages are smaller than the limit, or have no test of their own, each for a reason.
var smallPackages = map[string]string{
	"drivers":                        "opens the driver of a host: push over Proxmox VE",
	"drivers/drivertest":             "for tests: what every way into a machine must do",
	"drivers/local":                  "a driver is a package",
	"drivers/proxmox/inventory":      "reads a host; the stories of drivers/proxmox run it against a simulated one",
	"drivers/proxmox/kind":           "declarations, which each kind's test uses",
	"drivers/proxmox/observation":    "a document that driver and simulator share; TestTwin writes and reads it",
	"drivers/proxmox/pveapi/gen":     "the program that makes the table of the API",
	"engine/control/controltest":     "for tests: an agent to ask",
	"engine/enginetest":              "for tests: a host in memory",
	"engine/guest/aspect/aspecttest": "for tests: runs the golden cases of aspects",
	"engine/source/sourcetest":       "for tests: repositories and git servers",
	"examples":                       "files only",
	"hcl/lang":                       "the tests of hcl read whole files through it",
	"hcl/sops/sopstest":              "for tests: encrypts",
	"systemd":                        "files only",
}

// sizeLaw finds packages that are too large, too small or without tests, and types with too
// many methods. The simulator is tested as a whole, through its API.
func sizeLaw(tree []source) []string {
	var out []string
	lines, methods := sizes(tree)
	tested := map[string]bool{}
	for _, f := range tree {
		tested[f.pkg()] = tested[f.pkg()] || f.test
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		small := lines[name] < leastLines || !tested[name]
		switch {
		case lines[name] > mostLines:
			out = append(out, fmt.Sprintf("%s: %d lines, %d are enough: split it by what it does", name, lines[name], mostLines))
		case small && smallPackages[name] == "" && !strings.HasPrefix(name, "sim/"):
			out = append(out, fmt.Sprintf("%s: %d lines, with tests: %t: a package has at least %d lines and a test; put it into another one, or give a reason in smallPackages", name, lines[name], tested[name], leastLines))
		case !small && smallPackages[name] != "":
			out = append(out, fmt.Sprintf("test/arch: the row of %s in smallPackages is not needed any more", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if methods[name] > mostMethods {
			out = append(out, fmt.Sprintf("%s: %d methods, %d are enough: give its parts types of their own", name, methods[name], mostMethods))
		}
	}
	return out
}

// tablesOfFuncs are structs with many functions, each for its reason.
var tablesOfFuncs = map[string]string{
	"drivers/proxmox/kind.Of":  "a kind is declared as a value, and its functions are the declaration",
	"engine/guest/aspect.Of":   "as a kind",
	"engine/model.Kind":        "as a kind",
	"engine/agent.Options":     "what an agent needs of its surroundings: one caller sets all, tests replace one",
	"specserve.Options":        "as of an agent",
	"sim/pve/core.Config":      "the parts of a simulated host, put together in one place",
	"sim/pve/core.SectionFile": "a table of PVE as a value",
}

// funcsLaw finds structs with many functions: an interface beside its user says what they do.
func funcsLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		if f.test || f.forTests() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			fields, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			funcs := 0
			for _, field := range fields.Fields.List {
				if _, ok := field.Type.(*ast.FuncType); ok {
					funcs += max(1, len(field.Names))
				}
			}
			name := f.pkg() + "." + spec.Name.Name
			many := funcs > mostFuncs
			switch listed := tablesOfFuncs[name] != ""; {
			case !many && listed:
				out = append(out, fmt.Sprintf("test/arch: the row of %s in tablesOfFuncs is not needed any more", name))
			case many && !listed:
				out = append(out, fmt.Sprintf("%s: %s has %d functions, %d are enough: write an interface", f.path, spec.Name.Name, funcs, mostFuncs))
			}
			return true
		})
	}
	return out
}

// exportLaw finds exported names that no other package uses. The tests of a package are no other
// one, wherever they stand. A name may also be needed to write the type of another exported one, or
// belong to a set of constants.
func exportLaw(tree []source) []string {
	used, mentioned := map[string]bool{}, map[string]bool{}
	for _, f := range tree {
		packages := map[string]string{}
		for _, i := range f.ast.Imports {
			ours, ok := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module+"/")
			if name := path.Base(ours); ok && i.Name == nil {
				packages[name] = ours
			} else if ok {
				packages[i.Name.Name] = ours
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && packages[x.Name] != "" && packages[x.Name] != f.pkg() {
					used[packages[x.Name]+"."+s.Sel.Name] = true
				}
			}
			return true
		})
		if !f.test {
			for _, id := range surface(f.ast) {
				mentioned[f.pkg()+"."+id] = true
			}
		}
	}
	var out []string
	for _, f := range tree {
		if f.test || f.forTests() || f.ast.Name.Name == "main" {
			continue
		}
		for _, d := range f.ast.Decls {
			for _, id := range exported(d) {
				if name := f.pkg() + "." + id; !used[name] && !mentioned[name] {
					out = append(out, fmt.Sprintf("%s: no other package uses %s: begin it with a small letter", f.path, id))
				}
			}
		}
	}
	return out
}

// exported lists the exported names of a declaration: functions, types, variables, and
// constants that do not belong to a set with a type.
func exported(d ast.Decl) []string {
	var out []string
	add := func(id *ast.Ident) {
		if id.IsExported() {
			out = append(out, id.Name)
		}
	}
	switch x := d.(type) {
	case *ast.FuncDecl:
		if x.Recv == nil {
			add(x.Name)
		}
	case *ast.GenDecl:
		typed := false
		for _, s := range x.Specs {
			switch y := s.(type) {
			case *ast.TypeSpec:
				add(y.Name)
			case *ast.ValueSpec:
				typed = typed || x.Tok == token.CONST && y.Type != nil
				for _, id := range y.Names {
					if !typed {
						add(id)
					}
				}
			}
		}
	}
	return out
}

// surface lists the names in what a file exports: signatures, fields, and types of variables.
func surface(file *ast.File) []string {
	var out []string
	collect := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				out = append(out, id.Name)
			}
			return true
		})
	}
	for _, d := range file.Decls {
		switch x := d.(type) {
		case *ast.FuncDecl:
			if x.Name.IsExported() {
				collect(x.Type)
			}
		case *ast.GenDecl:
			for _, s := range x.Specs {
				switch y := s.(type) {
				case *ast.TypeSpec:
					collect(y.Type)
				case *ast.ValueSpec:
					if y.Type != nil {
						collect(y.Type)
					}
				}
			}
		}
	}
	return out
}

// homes are texts that belong to one place, since a second one would be a second rule.
var homes = []struct {
	text string
	in   []string
	rule string
}{
	{"PRIVATE KEY-----", []string{"engine/model", "engine/site", "hcl"}, "what is a private key"},
	{"syscall.Flock", []string{"engine/durable"}, "how a file is locked"},
	{"/run/homestak-gitops.lock", []string{"engine/guest"}, "how a machine is locked"},
}

// homeLaw finds files that spell a rule whose home is elsewhere.
func homeLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		if f.test || f.forTests() || strings.HasPrefix(f.path, "sim/") {
			continue
		}
		found := slices.Concat(texts(f.ast), calls(f.ast))
		for _, h := range homes {
			if !slices.Contains(h.in, f.pkg()) && slices.ContainsFunc(found, func(s string) bool { return strings.Contains(s, h.text) }) {
				out = append(out, fmt.Sprintf("%s: has %q: %s is decided in %s", f.path, h.text, h.rule, strings.Join(h.in, ", ")))
			}
		}
	}
	return out
}

// calls lists the functions of other packages that a file names, as package.Function.
func calls(file *ast.File) []string {
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				out = append(out, x.Name+"."+s.Sel.Name)
			}
		}
		return true
	})
	return out
}

// budget is the most lines that the tree may have. Who adds a capability raises a figure in
// the same commit, with a decision that names the price; who removes code lowers it.
var budget = map[string]int{"product": 125_200, "simulator": 37_500, "tests": 113_600}

// budgetLaw compares the lines of the tree with the budget.
func budgetLaw(tree []source) []string {
	have := map[string]int{}
	for _, f := range tree {
		switch {
		case f.test || f.forTests():
			have["tests"] += f.lines
		case strings.HasPrefix(f.path, "sim/"):
			have["simulator"] += f.lines
		default:
			have["product"] += f.lines
		}
	}
	var out []string
	for _, part := range slices.Sorted(maps.Keys(budget)) {
		if have[part] > budget[part] {
			out = append(out, fmt.Sprintf("test/arch: the %s has %d lines, its budget is %d: remove some, or raise the budget with a decision", part, have[part], budget[part]))
		}
	}
	return out
}
