"""What objects show of themselves: text, HTML and drawings, made from small data.

The functions here get strings and numbers and return strings. They know nothing of arrays, groups and stores,
which collect what they show themselves. Only a drawing looks into the metadata and the plans that it gets.
"""
