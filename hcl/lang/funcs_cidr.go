package lang

import (
	"fmt"
	"math/big"
	"net/netip"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// cidrHostFunc returns the address of a host in a network, counted from its start or, below zero,
// from its end: cidrhost("10.0.12.0/24", 5) is 10.0.12.5.
func cidrHostFunc() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "prefix", Type: cty.String}, {Name: "hostnum", Type: cty.Number}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			p, err := network(args[0].AsString())
			if err != nil {
				return cty.NilVal, function.NewArgError(0, err)
			}
			n, err := whole(args[1])
			if err != nil {
				return cty.NilVal, function.NewArgError(1, err)
			}
			size := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
			if n.Sign() < 0 {
				n = new(big.Int).Add(n, size)
			}
			if n.Sign() < 0 || n.Cmp(size) >= 0 {
				return cty.NilVal, function.NewArgErrorf(1, "%s has only %s addresses", p, size)
			}
			return cty.StringVal(plus(p.Addr(), n).String()), nil
		},
	})
}

// cidrSubnetFunc returns one of the subnets of a network: cidrsubnet("10.0.0.0/16", 8, 12) is
// 10.0.12.0/24.
func cidrSubnetFunc() function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "prefix", Type: cty.String}, {Name: "newbits", Type: cty.Number}, {Name: "netnum", Type: cty.Number}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			p, err := network(args[0].AsString())
			if err != nil {
				return cty.NilVal, function.NewArgError(0, err)
			}
			bits, err := whole(args[1])
			if err != nil {
				return cty.NilVal, function.NewArgError(1, err)
			}
			free := p.Addr().BitLen() - p.Bits()
			if bits.Sign() < 0 || bits.Cmp(big.NewInt(int64(free))) > 0 {
				return cty.NilVal, function.NewArgErrorf(1, "%s has only %d bits left", p, free)
			}
			n, err := whole(args[2])
			if err != nil {
				return cty.NilVal, function.NewArgError(2, err)
			}
			newBits := int(bits.Int64())
			if n.Sign() < 0 || n.BitLen() > newBits {
				return cty.NilVal, function.NewArgErrorf(2, "%d bits are too few for this network number", newBits)
			}
			start := new(big.Int).Lsh(n, uint(free-newBits))
			return cty.StringVal(netip.PrefixFrom(plus(p.Addr(), start), p.Bits()+newBits).String()), nil
		},
	})
}

func network(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%s is not a network such as 10.0.12.0/24", Quote(s))
	}
	return p.Masked(), nil
}

func whole(v cty.Value) (*big.Int, error) {
	f := v.AsBigFloat()
	if !f.IsInt() || f.MantExp(nil) > 256 {
		return nil, fmt.Errorf("a whole number is required")
	}
	n, _ := f.Int(nil)
	return n, nil
}

// plus adds a number that is known to fit.
func plus(a netip.Addr, n *big.Int) netip.Addr {
	raw := a.AsSlice()
	out := make([]byte, len(raw))
	new(big.Int).Add(new(big.Int).SetBytes(raw), n).FillBytes(out)
	sum, _ := netip.AddrFromSlice(out)
	return sum
}
